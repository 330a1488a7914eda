-- KEYS: epoch, n values. ARGV: epoch, ttl, liveness, n tails. Returns now and one answer a claim, as claim.lua's.
-- See claims.reassert.
local began = tonumber(string.match(ARGV[1], '^%d+-(%d+)-') or '0')
local head = 'c|' .. stamp(now + ARGV[3]) .. '|' .. stamp(now) .. '|'
local answers = {now}

local function decide(key, tail)
  local held = call('GET', key)
  if not held then
    call('SET', key, head .. tail, 'PX', ARGV[2])
    return 'G'
  end
  if not string.find(held, FORM) then return 'X' end
  local state, live, since = string.sub(held, 1, 1), string.sub(held, 3, 15), string.sub(held, 17, 29)
  if state == 's' then return 'Ts' .. since end
  if (state == 'c' or state == 'a') and string.sub(held, TAIL, TAIL + #tail - 1) == tail then
    call('SETRANGE', key, 2, string.sub(head, 3, 29))
    return 'G'
  end
  local position, origin, hop, token = string.match(held, FIELDS, TAIL)
  local _, my_origin, my_hop = string.match(tail, FIELDS)
  if tonumber(since) < began or (origin == my_origin and tonumber(my_hop) > tonumber(hop)) then
    call('SET', key, head .. tail, 'PX', ARGV[2])
    return 'G'
  end
  if state == 'w' or state == 'd' then return 'T' .. state .. since end
  return 'P' .. (tonumber(live) > now and '1' or '0') .. since .. position .. '|' .. token
end

for i = 2, #KEYS do
  answers[i] = decide(KEYS[i], ARGV[i + 2])
end
return answers
