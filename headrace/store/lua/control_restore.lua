-- KEYS: epoch (not looked at), the hash of orders. ARGV: the latest version known, when that was, then (field, what was there) for
-- each order. Where Redis knows an older version, or none, it lost its data since: then they are written again. What was given since
-- stays; what is older and not among them was taken back before the loss. Returns now and whether that was so.
local call = redis.call
local time = call('TIME')
local now = time[1] * 1000 + math.floor(time[2] / 1000)
local known, seen = tonumber(ARGV[1]), tonumber(ARGV[2])
if tonumber(call('HGET', KEYS[2], 'version') or '0') >= known then
  return {now, 0}
end
local there = call('HGETALL', KEYS[2])
for i = 1, #there, 2 do
  local since = tonumber(string.match(there[i + 1], '^%d+|%d+|(%d+)|'))
  if since and since < seen then
    call('HDEL', KEYS[2], there[i])
  end
end
for i = 3, #ARGV, 2 do
  call('HSETNX', KEYS[2], ARGV[i], ARGV[i + 1])
end
call('HSET', KEYS[2], 'version', string.format('%d', known + 1))
return {now, 1}
