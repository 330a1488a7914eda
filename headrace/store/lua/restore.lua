-- KEYS: epoch, n values. ARGV: epoch, then (life in ms, since and tail) for each. See claims.restore.
local answers = {now}
for i = 2, #KEYS do
  local held = call('GETRANGE', KEYS[i], 0, 0)
  if held == 's' then
    answers[i] = 0
  else
    call('SET', KEYS[i], 's|0000000000000|' .. ARGV[i * 2 - 1], 'PX', ARGV[i * 2 - 2])
    answers[i] = 1
  end
end
return answers
