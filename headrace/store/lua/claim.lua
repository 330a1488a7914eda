-- KEYS: epoch, n values, closed, replays. ARGV: epoch, n, ttl, liveness, n tails, then (number of the claim, number of its
-- replay's key, strict) for each claim that names a replay. Returns now and one answer a claim; see claims.decide.
local n, ttl, live_until = tonumber(ARGV[2]), ARGV[3], stamp(now + ARGV[4])
if call('EXISTS', KEYS[n + 2]) == 1 then
  return redis.error_reply('HEADRACELOST admission is closed')
end
local head = 'c|' .. live_until .. '|' .. stamp(now) .. '|'
local replays, refused = {}, {}
for j = n + 5, #ARGV, 3 do
  local i, known = tonumber(ARGV[j]), call('EXISTS', KEYS[tonumber(ARGV[j + 1])]) == 1
  replays[i] = known
  refused[i] = not known and ARGV[j + 2] == '1'
end

local function newer(token, than)
  local incarnation, epoch = string.match(token, '^(.*)/(%d+)$')
  local other, before = string.match(than, '^(.*)/(%d+)$')
  return incarnation ~= other or tonumber(epoch) > tonumber(before)
end

local function grant(key, tail)
  call('SET', key, head .. tail, 'PX', ttl)
  return 'O'
end

local function decide(key, tail, replay)
  local held = call('GET', key)
  if not held then -- it expired under our eyes
    call('SET', key, head .. tail, 'PX', ttl)
    return 'G'
  end
  if not string.find(held, FORM) then return 'X' end
  local state, live, since = string.sub(held, 1, 1), string.sub(held, 3, 15), string.sub(held, 17, 29)
  local position, origin, hop, token, print, answer = string.match(held, FIELDS, TAIL)
  local my_position, my_origin, my_hop, my_token, my_print = string.match(tail, FIELDS)
  local later = origin == my_origin and tonumber(my_hop) > tonumber(hop)
  replay = replay and later and state ~= 's'
  if print ~= my_print and not replay then return 'C' .. since end
  if state == 'w' or state == 'd' or state == 's' then
    if (state == 'w' and later) or replay then return grant(key, tail) end
    return 'T' .. state .. since
  end
  local same, alive = position == my_position, tonumber(live) > now
  if same and token == my_token then
    call('SETRANGE', key, 2, live_until)
    return state == 'a' and 'A' .. string.sub(held, answer) or 'G'
  end
  if same and newer(my_token, token) then
    if state == 'a' then
      local payload = string.sub(held, answer)
      call('SET', key, 'a|' .. live_until .. '|' .. since .. '|' .. tail .. payload, 'PX', ttl)
      return 'A' .. payload
    end
    if not alive then return grant(key, tail) end
  end
  if later then return grant(key, tail) end
  if same then return 'W' end
  return 'P' .. (alive and '1' or '0') .. since .. position .. '|' .. token
end

local answers = {now}
for i = 1, n do
  local key, tail = KEYS[i + 1], ARGV[i + 4]
  if refused[i] then
    answers[i + 1] = 'U'
  elseif call('SET', key, head .. tail, 'NX', 'PX', ttl) then
    answers[i + 1] = 'G'
  else
    answers[i + 1] = decide(key, tail, replays[i])
  end
end
return answers
