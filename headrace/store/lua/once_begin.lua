-- KEYS: epoch, closed, claim, steps (a hash). ARGV: epoch, ttl, tail of the claim, step, nonce, again ('1' or ''), steps at most.
-- A step reads state|since|nonce|value: b begun, g begun again, d done. Returns now and one answer; see once.begin.
if call('EXISTS', KEYS[2]) == 1 then
  return redis.error_reply('HEADRACELOST admission is closed')
end
if own(KEYS[3], ARGV[3]) ~= 'c' then return {now, 'N'} end
local kept = call('HGET', KEYS[4], ARGV[4])
local letter = 'b'
if kept then
  local state, since, nonce, at = string.match(kept, '^([bgd])|(%d%d%d%d%d%d%d%d%d%d%d%d%d)|([^|]*)|()')
  if not state then return {now, 'X'} end
  if state == 'd' then return {now, 'D' .. string.sub(kept, at)} end
  if nonce == ARGV[5] then return {now, state} end
  if ARGV[6] == '' then return {now, 'U' .. since} end
  letter = 'g'
elseif call('HLEN', KEYS[4]) >= tonumber(ARGV[7]) then
  return {now, 'F'}
end
call('HSET', KEYS[4], ARGV[4], letter .. '|' .. stamp(now) .. '|' .. ARGV[5] .. '|')
call('PEXPIRE', KEYS[4], ARGV[2])
return {now, letter}
