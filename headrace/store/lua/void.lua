-- KEYS: epoch, n values. ARGV: epoch, then (position, token) for each. See claims.void.
local answers = {now}
for i = 2, #KEYS do
  local held = call('GET', KEYS[i])
  local state = held and string.sub(held, 1, 1)
  answers[i] = 0
  if state == 'c' or state == 'a' then
    local position, _, _, token = string.match(held, FIELDS, TAIL)
    if position == ARGV[i * 2 - 2] and token == ARGV[i * 2 - 1] then
      call('DEL', KEYS[i])
      answers[i] = 1
    end
  end
end
return answers
