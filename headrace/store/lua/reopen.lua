-- KEYS: epoch, closed, lease. ARGV: epoch, who asks. Returns now and whether admission is open.
local closed = call('GET', KEYS[2])
if not closed then
  return {now, 1}
end
if call('GET', KEYS[3]) ~= ARGV[2] then
  return {now, 0}
end
call('DEL', KEYS[2], KEYS[3])
return {now, 1}
