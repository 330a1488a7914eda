-- KEYS: epoch (not looked at: an order is given whatever data Redis holds), the hash of orders. ARGV: field, what to put there,
-- entries at most. A field reads until|ids left|text; `version` grows with every change. Returns now and whether there was room.
local call = redis.call
local time = call('TIME')
local now = time[1] * 1000 + math.floor(time[2] / 1000)
local fields = call('HGETALL', KEYS[2])
local count = 0
for i = 1, #fields, 2 do
  local ends = tonumber(string.match(fields[i + 1], '^(%d+)|'))
  if ends and ends <= now then
    call('HDEL', KEYS[2], fields[i])
  elseif ends and fields[i] ~= ARGV[1] then -- what another version wrote is left alone
    count = count + 1
  end
end
if count >= tonumber(ARGV[3]) then
  return {now, 0}
end
call('HSET', KEYS[2], ARGV[1], ARGV[2])
-- Versions that begin later begin lower (9e15 less the time in us): who knew those from before a loss sees it, whatever was given since.
call('HSETNX', KEYS[2], 'version', string.format('%.0f', 9e15 - time[1] * 1e6 - time[2]))
call('HINCRBY', KEYS[2], 'version', 1)
return {now, 1}
