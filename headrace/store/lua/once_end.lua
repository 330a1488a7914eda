-- KEYS: epoch, closed, claim, steps (a hash). ARGV: epoch, ttl, tail of the claim, step, nonce, 'd' with the value, or 'x': it did
-- not happen. Returns now and whether it was this run's to tell; see once.end.
if call('EXISTS', KEYS[2]) == 1 then
  return redis.error_reply('HEADRACELOST admission is closed')
end
local kept = call('HGET', KEYS[4], ARGV[4])
if kept then
  local nonce = string.match(kept, '^[bgd]|%d%d%d%d%d%d%d%d%d%d%d%d%d|([^|]*)|')
  if nonce ~= ARGV[5] then return {now, 0} end
elseif own(KEYS[3], ARGV[3]) ~= 'c' then
  return {now, 0}
end
if ARGV[6] == 'x' then
  call('HDEL', KEYS[4], ARGV[4])
else
  call('HSET', KEYS[4], ARGV[4], 'd|' .. stamp(now) .. '|' .. ARGV[5] .. '|' .. string.sub(ARGV[6], 2))
  call('PEXPIRE', KEYS[4], ARGV[2])
end
return {now, 1}
