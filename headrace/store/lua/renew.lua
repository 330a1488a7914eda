-- KEYS: epoch, n values. ARGV: epoch, liveness, then a tail for each. See claims.renew.
local live_until, answers = stamp(now + ARGV[2]), {now}
for i = 2, #KEYS do
  local state = own(KEYS[i], ARGV[i + 1])
  if state == 'c' or state == 'a' then
    call('SETRANGE', KEYS[i], 2, live_until)
    answers[i] = 1
  else
    answers[i] = 0
  end
end
return answers
