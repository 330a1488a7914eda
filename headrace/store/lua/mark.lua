-- KEYS: epoch, n values. ARGV: epoch, the lives of w, d and s, then for each value its state (w, d, s, or x to forget)
-- and its tail, in one word. See claims.mark.
local since, answers = stamp(now), {now}
local ttls = {w = ARGV[2], d = ARGV[3], s = ARGV[4]}
for i = 2, #KEYS do
  local to, tail = string.sub(ARGV[i + 3], 1, 1), string.sub(ARGV[i + 3], 2)
  local key = KEYS[i]
  local state = own(key, tail)
  if not state and to == 's' and call('GETRANGE', key, 0, 0) == 's' then
    state = 's' -- restored from its result meanwhile
  end
  if state == 'c' or state == 'a' then
    if to == 'x' then
      call('DEL', key)
    else
      call('SET', key, to .. '|0000000000000|' .. since .. '|' .. tail, 'PX', ttls[to])
    end
    answers[i] = 1
  else
    answers[i] = state == to and 1 or 0
  end
end
return answers
