-- Which data is this? KEYS: epoch, closed, run, beat. ARGV: the epoch known ('' for none), the latest beat known, the
-- server's run id ('' if it tells none), a random name, how old a beat may be where there is no run id, in ms.
-- Returns now, the epoch that stands, whether it was written here, and `closed` ('' while admission is open).
-- An epoch reads <number, which only grows>-<when it began>-<name>; `closed` reads <restore from>|<since>, both in ms.
local call = redis.call
local time = call('TIME')
local now = time[1] * 1000 + math.floor(time[2] / 1000)
local known, known_beat, run = ARGV[1], tonumber(ARGV[2]), ARGV[3]
local epoch, closed = call('GET', KEYS[1]), call('GET', KEYS[2])
local beat = tonumber(call('GET', KEYS[4]) or '0')

local function number(text)
  return text and tonumber(string.match(text, '^(%d+)-')) or 0
end

local lost = not epoch
  or number(epoch) < number(known)                                  -- it went back to an earlier epoch
  or (epoch == known and beat < known_beat)                         -- it went back, within the epoch
  or (run ~= '' and call('GET', KEYS[3]) ~= run)                    -- it was started again since the last beat
  or (run == '' and known == '' and now - beat > tonumber(ARGV[5])) -- nobody can tell
if not lost then
  return {now, epoch, 0, closed or ''}
end
local from = math.max(0, beat - 60000)
if closed then
  from = math.min(from, tonumber(string.match(closed, '^(%d+)|')))
end
epoch = string.format('%d-%d-%s', math.max(number(epoch), number(known), now - 1) + 1, now, ARGV[4])
closed = string.format('%d|%d', from, now)
call('SET', KEYS[1], epoch)
call('SET', KEYS[2], closed)
call('SET', KEYS[3], run)
call('SET', KEYS[4], string.format('%d', now))
return {now, epoch, 1, closed}
