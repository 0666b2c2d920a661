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
local function add(key, r, gauges, added)
  local old, parts = {}, {gauges}
  for n in string.gmatch(redis.call('HGET', key, r.field) or '', '[^ ]+') do
    table.insert(old, n)
  end
  local skipped = gauges and 3 or 0
  for i, n in ipairs(added) do
    local had = old[i + skipped] or '-'
    table.insert(parts, n == '-' and had or string.format('%d', (tonumber(had) or 0) + n))
  end
  redis.call('HSET', key, r.field, table.concat(parts, ' '))
  redis.call('EXPIRE', key, ops.keep)
end
-- A minute keeps of each replica how often and how much load and KV usage were told, and the
-- highest KV usage: its last reading alone would be a matter of luck.
local function read(r)
  local key = 'sb:minute:' .. r.pool .. ':' .. floor(ops.now, ops.minute)
  local name = 'g/' .. string.sub(r.field, 3)
  local sums, i = {}, 0
  for n in string.gmatch(redis.call('HGET', key, name) or '0 0 0 0 0 0 0', '[^ ]+') do
    table.insert(sums, tonumber(n))
  end
  for _, value in ipairs({r.running, r.waiting, r.kv}) do
    if value ~= cjson.null then
      sums[i + 1], sums[i + 2] = sums[i + 1] + 1, sums[i + 2] + value
    end
    i = i + 2
  end
  if r.kv ~= cjson.null then sums[7] = math.max(sums[7], r.kv) end
  redis.call('HSET', key, name, table.concat(sums, ' '))
end
-- An engine's own counter comes through every agent that scrapes it, now fresher, now staler: only
-- what is above the highest seen is new. Less than that is a new process if the engine says so, or
-- if the same agent tells; else it is an older view.
local function preempted(r)
  local key = 'sb:preempted:' .. string.sub(r.field, 3)
  local total, process = r.preempted, r.process ~= cjson.null and tostring(r.process) or ''
  local had = redis.call('HMGET', key, 'total', 'process', 'agent')
  local more = 0
  if had[1] then
    local before, is_newer = tonumber(had[1]), false
    if process ~= '' and had[2] ~= '' and process ~= had[2] then
      if tonumber(process) < tonumber(had[2]) then return 0 end
      is_newer = true
    end
    if is_newer or (total < before and had[3] == ops.agent) then
      more = total
    elseif total < before then
      return 0
    else
      more = total - before
    end
  end
  redis.call('HSET', key, 'total', total, 'process', process, 'agent', ops.agent)
  redis.call('EXPIRE', key, ops.keep)
  return more
end
local since = known and tonumber(seen[3]) or ops.now
local begin = floor(since + ops.step / 2, ops.step)
local finish = math.max(floor(ops.now + ops.step / 2, ops.step), begin + ops.step)
local stretch = ops.now - since > ops.step and string.format('%d:%d', begin, finish)
for _, r in ipairs(ops.replicas) do
  local before, added, none = {}, {}, {}
  for n in string.gmatch(redis.call('HGET', counters, r.field) or '', '%d+') do
    table.insert(before, tonumber(n))
  end
  redis.call('HSET', counters, r.field, table.concat(r.totals, ' '))
  for i, total in ipairs(r.totals) do
    added[i] = known and math.max(0, total - (before[i] or 0)) or 0
    none[i] = 0
  end
  table.insert(added, r.preempted ~= cjson.null and preempted(r) or '-')
  table.insert(none, '-')
  read(r)
  if stretch then
    add('sb:stretch:' .. r.pool .. ':' .. stretch, r, nil, added)
    index(r.pool, stretch)
    added = none
  end
  add('sb:pool:' .. r.pool .. ':' .. floor(ops.now, ops.step), r, r.gauges, added)
  add('sb:minute:' .. r.pool .. ':' .. floor(ops.now, ops.minute), r, r.gauges, added)
end
return 1
"""

CLEAN = """
local at = redis.call('ZSCORE', KEYS[1], ARGV[1])
if at and tonumber(at) <= tonumber(ARGV[2]) then redis.call('ZREM', KEYS[1], ARGV[1]) end
"""
