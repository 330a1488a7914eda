-- KEYS: epoch, the hash of pauses. ARGV: epoch, target, ttl, what to say of it. Returns now and whether it is the first.
-- A field reads until|text: hashes have no expiry of their own fields before Redis 7.4.
local until_ms, longest = now + ARGV[3], now + ARGV[3]
local first = 1
local fields = call('HGETALL', KEYS[2])
for i = 1, #fields, 2 do
  local ends = tonumber(string.sub(fields[i + 1], 1, 13))
  if ends and ends <= now then
    call('HDEL', KEYS[2], fields[i])
  elseif ends then -- what another version wrote is left alone
    longest = math.max(longest, ends)
    if fields[i] == ARGV[2] then first = 0 end
  end
end
call('HSET', KEYS[2], ARGV[2], stamp(until_ms) .. '|' .. ARGV[4])
call('PEXPIREAT', KEYS[2], string.format('%d', longest))
return {now, first}
