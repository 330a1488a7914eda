-- KEYS: epoch, n values. ARGV: epoch, then (tail, state w|d|s or x to forget, ttl) for each. See claims.mark.
local since, answers = stamp(now), {now}
for i = 2, #KEYS do
  local tail, to, ttl = ARGV[i * 3 - 4], ARGV[i * 3 - 3], ARGV[i * 3 - 2]
  local key = KEYS[i]
  local state = own(key, tail)
  if state == 'c' or state == 'a' then
    if to == 'x' then
      call('DEL', key)
    else
      call('SET', key, to .. '|0000000000000|' .. since .. '|' .. tail, 'PX', ttl)
    end
    answers[i] = 1
  else
    answers[i] = state == to and 1 or 0
  end
end
return answers
