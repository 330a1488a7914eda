-- Who restores? KEYS: epoch, closed, lease. ARGV: epoch, who asks, the lease's life in ms. Returns now, `closed` ('' once
-- admission is open), whether the lease is the asker's, and for how many ms admission has been closed.
local closed = call('GET', KEYS[2])
if not closed then
  return {now, '', 0, 0}
end
local for_ms = now - tonumber(string.match(closed, '|(%d+)$'))
local holder = call('GET', KEYS[3])
if holder and holder ~= ARGV[2] then
  return {now, closed, 0, for_ms}
end
call('SET', KEYS[3], ARGV[2], 'PX', ARGV[3])
return {now, closed, 1, for_ms}
