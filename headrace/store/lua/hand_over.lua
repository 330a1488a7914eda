-- KEYS: epoch, n values. ARGV: epoch, ttl, liveness, then (tail, answer) for each. See claims.hand_over.
local head = 'a|' .. stamp(now + ARGV[3]) .. '|' .. stamp(now) .. '|'
local answers = {now}
for i = 2, #KEYS do
  local tail, payload = ARGV[i * 2], ARGV[i * 2 + 1]
  local state = own(KEYS[i], tail)
  if state == 'c' or state == 'a' then
    call('SET', KEYS[i], head .. tail .. payload, 'PX', ARGV[2])
    answers[i] = 1
  else
    answers[i] = 0
  end
end
return answers
