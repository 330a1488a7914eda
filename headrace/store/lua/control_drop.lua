-- KEYS: epoch (not looked at), the hash of orders. ARGV: fields. Returns now and, for each, whether it was there.
local call = redis.call
local time = call('TIME')
local answers = {time[1] * 1000 + math.floor(time[2] / 1000)}
for i = 1, #ARGV do
  answers[i + 1] = call('HDEL', KEYS[2], ARGV[i])
end
-- Versions that begin later begin lower (9e15 less the time in us): who knew those from before a loss sees it, whatever was given since.
call('HSETNX', KEYS[2], 'version', string.format('%.0f', 9e15 - time[1] * 1e6 - time[2]))
call('HINCRBY', KEYS[2], 'version', 1)
return answers
