-- KEYS: epoch, closed, lease. ARGV: epoch, who asks, how long admission stays closed at least, in ms. Returns now and
-- whether it is open.
local closed = call('GET', KEYS[2])
if not closed then
  return {now, 1}
end
if call('GET', KEYS[3]) ~= ARGV[2] or now - tonumber(string.match(closed, '|(%d+)$')) < tonumber(ARGV[3]) then
  return {now, 0}
end
call('DEL', KEYS[2], KEYS[3])
return {now, 1}
