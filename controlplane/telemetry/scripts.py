"""What runs inside Redis, in one step each: booking a report, and crossing a minute off."""

from __future__ import annotations

# One round trip books a report: repeated reports change nothing, counters become differences. What
# was counted during an outage is spread over it; gauges are of now, so there they stay gaps.
BOOK = """
local ops = cjson.decode(ARGV[1])
local counters = KEYS[3]
local seen = redis.call('HMGET', counters, 'started', 'number', 'at')
local known = seen[1] == ops.started
if known and tonumber(seen[2]) >= ops.number then return 0 end
redis.call('SET', KEYS[1], ARGV[2], 'EX', ops.keep)
redis.call('ZADD', KEYS[2], ops.now, ops.agent)
redis.call('ZREMRANGEBYSCORE', KEYS[2], '-inf', ops.now - ops.keep)
if not known then redis.call('DEL', counters) end
redis.call('HSET', counters, 'started', ops.started, 'number', ops.number, 'at', ops.now)
redis.call('EXPIRE', counters, ops.keep)
for key, fields in pairs(ops.add) do
  for name, n in pairs(fields) do redis.call('HINCRBY', key, name, n) end
  redis.call('EXPIRE', key, ops.keep)
end
for key, fields in pairs(ops.put) do
  for name, text in pairs(fields) do redis.call('HSET', key, name, text) end
  redis.call('EXPIRE', key, ops.keep)
end
local function floor(at, size) return math.floor(at / size) * size end
local function tell(minute, subject)
  local key = string.format('sb:told:%d', minute)
  redis.call('SADD', key, subject)
  redis.call('EXPIRE', key, ops.keep)
  redis.call('ZADD', 'sb:dirty', ops.now, string.format('%d', minute))
end
for _, subject in ipairs(ops.told) do tell(floor(ops.now, ops.minute), subject) end
redis.call('ZREMRANGEBYSCORE', 'sb:dirty', '-inf', ops.now - ops.keep)
local function index(subject, stretch)
  local key = 'sb:stretches:' .. subject
  local first, last = string.match(stretch, '^(%d+):(%d+)$')
  redis.call('ZADD', key, tonumber(last), stretch)
  redis.call('ZREMRANGEBYSCORE', key, '-inf', ops.now - ops.keep)
  redis.call('EXPIRE', key, ops.keep)
  for minute = floor(tonumber(first), ops.minute), tonumber(last) - 1, ops.minute do
    tell(minute, subject)
  end
end
for _, s in ipairs(ops.stretched) do index(s[1], s[2]) end
local function numbers(text)
  local found = {}
  for n in string.gmatch(text, '[^ ]+') do table.insert(found, tonumber(n) or n) end
  return found
end
-- Gives a replica's field with counts added to those it has; `gauges` replace the old ones.
local function added_to(text, gauges, added)
  local old, parts, skipped = text and numbers(text) or {}, {}, 0
  if gauges then parts[1], skipped = gauges, 3 end
  for i, n in ipairs(added) do
    local had = old[i + skipped] or '-'
    if n ~= '-' then had = string.format('%d', (had == '-' and 0 or had) + n) end
    table.insert(parts, had)
  end
  return table.concat(parts, ' ')
end
-- A minute keeps of each replica how often and how much load and KV usage were told, and the
-- highest KV usage: its last reading alone would be a matter of luck.
local function read(text, r)
  local sums, i = numbers(text or '0 0 0 0 0 0 0'), 0
  for _, value in ipairs({r.running, r.waiting, r.kv}) do
    if value ~= cjson.null then
      sums[i + 1], sums[i + 2] = sums[i + 1] + 1, sums[i + 2] + value
    end
    i = i + 2
  end
  if r.kv ~= cjson.null then sums[7] = math.max(sums[7], r.kv) end
  return table.concat(sums, ' ')
end
-- An engine's own counter comes through every agent that scrapes it, now fresher, now staler: only
-- what is above the highest seen is new. Less than that is a new process if the engine says so, or
-- if the same agent tells; else it is an older view. Gives what is new, and what is to be kept.
local function preempted(text, r)
  local total, process = r.preempted, r.process ~= cjson.null and tostring(r.process) or '-'
  local kept = string.format('%d', total) .. ' ' .. process .. ' ' .. ops.agent
  if text == kept then return 0 end
  if not text then return 0, kept end
  local before, of, teller = string.match(text, '^(%S+) (%S+) (%S+)$')
  before = tonumber(before)
  if process ~= '-' and of ~= '-' and process ~= of then
    if tonumber(process) < tonumber(of) then return 0 end
    return total, kept
  end
  if total > before then return total - before, kept end
  if total < before and teller == ops.agent then return total, kept end
  return 0
end
local since = known and tonumber(seen[3]) or ops.now
local begin = floor(since + ops.step / 2, ops.step)
local finish = math.max(floor(ops.now + ops.step / 2, ops.step), begin + ops.step)
local stretch = ops.now - since > ops.step and string.format('%d:%d', begin, finish)
local none = {0, 0, 0, 0, 0, '-'}
local function put(key, pairs_)
  if #pairs_ == 0 then return end
  redis.call('HSET', key, unpack(pairs_))
  redis.call('EXPIRE', key, ops.keep)
end
-- Replicas of one pool together: few calls, however many there are.
local function book(pool, replicas)
  local fields, readings = {}, {}
  for i, r in ipairs(replicas) do
    fields[i], readings[i] = r.field, 'g/' .. string.sub(r.field, 3)
  end
  local step = 'sb:pool:' .. pool .. ':' .. floor(ops.now, ops.step)
  local minute = 'sb:minute:' .. pool .. ':' .. floor(ops.now, ops.minute)
  local late = stretch and 'sb:stretch:' .. pool .. ':' .. stretch
  local engines = 'sb:preempted:' .. pool
  local before = redis.call('HMGET', counters, unpack(fields))
  local in_step = redis.call('HMGET', step, unpack(fields))
  local in_minute = redis.call('HMGET', minute, unpack(fields))
  local read_before = redis.call('HMGET', minute, unpack(readings))
  local engine_before = redis.call('HMGET', engines, unpack(fields))
  local in_stretch = late and redis.call('HMGET', late, unpack(fields))
  local to = {counters = {}, step = {}, minute = {}, late = {}, engines = {}}
  local function note(where, field, value)
    table.insert(to[where], field)
    table.insert(to[where], value)
  end
  for i, r in ipairs(replicas) do
    local totals, added = before[i] and numbers(before[i]) or {}, {}
    for j, total in ipairs(r.totals) do
      added[j] = known and math.max(0, total - (totals[j] or 0)) or 0
    end
    added[6] = '-'
    if r.preempted ~= cjson.null then
      local more, kept = preempted(engine_before[i], r)
      added[6] = more
      if kept then note('engines', r.field, kept) end
    end
    note('counters', r.field, table.concat(r.totals, ' '))
    if late then
      note('late', r.field, added_to(in_stretch[i], nil, added))
      added = none
    end
    note('step', r.field, added_to(in_step[i], r.gauges, added))
    note('minute', r.field, added_to(in_minute[i], r.gauges, added))
    note('minute', readings[i], read(read_before[i], r))
  end
  put(counters, to.counters)
  put(step, to.step)
  put(minute, to.minute)
  if late then
    put(late, to.late)
    index(pool, stretch)
  end
  put(engines, to.engines)
  redis.call('EXPIRE', engines, ops.keep)
end
for _, group in ipairs(ops.replicas) do book(group[1], group[2]) end
return 1
"""

CLEAN = """
local at = redis.call('ZSCORE', KEYS[1], ARGV[1])
if at and tonumber(at) <= tonumber(ARGV[2]) then redis.call('ZREM', KEYS[1], ARGV[1]) end
"""
