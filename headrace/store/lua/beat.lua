-- KEYS: epoch, beat. ARGV: epoch, the latest beat known. A beat older than that one is a snapshot's: it is not renewed.
local beat = tonumber(call('GET', KEYS[2]) or '-1')
if beat < tonumber(ARGV[2]) then
  return redis.error_reply('HEADRACELOST an older beat')
end
beat = math.max(beat, now)
call('SET', KEYS[2], string.format('%d', beat))
return {now, beat}
