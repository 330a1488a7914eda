-- Before every script: is this the Redis the worker knows, and what time is it there?
-- KEYS[1]: the epoch. ARGV[1]: the epoch this worker knows.
-- A value reads state|live until|since|position|origin|hop|token|fingerprint|answer; the first three have a fixed
-- width, the five after them are the "tail", which a claim's holder can always spell out again.
local call = redis.call
if call('GET', KEYS[1]) ~= ARGV[1] then
  return redis.error_reply('HEADRACELOST another epoch')
end
local time = call('TIME')
local now = time[1] * 1000 + math.floor(time[2] / 1000)
local TAIL = 31

local function stamp(ms)
  return string.format('%013d', ms)
end

-- A tail's five fields, and where what follows it begins.
local FIELDS = '^([^|]*)|([^|]*)|(%d+)|([^|]*)|([^|]*)|()'

-- A value that is not of this form was written by another version.
local FORM = '^[cawds]|%d%d%d%d%d%d%d%d%d%d%d%d%d|%d%d%d%d%d%d%d%d%d%d%d%d%d|[^|]*|[^|]*|%d+|[^|]*|[^|]*|'

-- The value's state and whole value, if `tail` is what it holds.
local function own(key, tail)
  local held = call('GET', key)
  if held and string.sub(held, TAIL, TAIL + #tail - 1) == tail then
    return string.sub(held, 1, 1), held
  end
  return nil
end
