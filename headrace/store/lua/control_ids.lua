-- KEYS: epoch (not looked at), the hash of orders, n ids. ARGV: the order that cancels them ('' to cancel them no longer), for how
-- long in ms. An order's field counts its ids: until|left|text; without any left it goes. Returns now and, for each id, 1 where that
-- changed something.
local call = redis.call
local time = call('TIME')
local answers = {time[1] * 1000 + math.floor(time[2] / 1000)}

local function count(order, by)
  local field = 'ids:' .. order
  local ends, left, text = string.match(call('HGET', KEYS[2], field) or '', '^(%d+)|(%d+)|(.*)$')
  if not ends then return end
  left = left + by
  if left <= 0 then
    call('HDEL', KEYS[2], field)
  else
    call('HSET', KEYS[2], field, string.format('%s|%d|%s', ends, left, text))
  end
end

local changes = {}
for i = 3, #KEYS do
  local before = call('GET', KEYS[i]) or ''
  if ARGV[1] ~= '' then
    call('SET', KEYS[i], ARGV[1], 'PX', ARGV[2])
  elseif before ~= '' then
    call('DEL', KEYS[i])
  end
  answers[i - 1] = before == ARGV[1] and 0 or 1
  if before ~= ARGV[1] then
    if before ~= '' then changes[before] = (changes[before] or 0) - 1 end
    if ARGV[1] ~= '' then changes[ARGV[1]] = (changes[ARGV[1]] or 0) + 1 end
  end
end
for order, by in pairs(changes) do
  count(order, by)
end
-- Versions that begin later begin lower (9e15 less the time in us): who knew those from before a loss sees it, whatever was given since.
call('HSETNX', KEYS[2], 'version', string.format('%.0f', 9e15 - time[1] * 1e6 - time[2]))
call('HINCRBY', KEYS[2], 'version', 1)
return answers
