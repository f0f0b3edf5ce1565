"""Job queue on Redis in three Lua scripts: the work that fastjournald does for a SET with a URI.

One waiting job a URI, ordered by priority and instant, delayed until its instant, leased under a
token that a late worker does not have any more. Redis runs a script alone and logs it as one
transaction, so with ``appendfsync always`` a reply means what an OK of fastjournald means.

Keys of Redis:

- ``ready``: sorted set of job names, all with score 0, so in the order of their bytes;
- ``delayed``: job names by their instant; ``leased``: job names by the end of their lease;
- ``uris``: hash of URI to the name of the job that waits; ``names``: hash of name to URI;
- ``bodies``: hash of name to body; ``tokens``: hash of name to the token of its lease.

A job name is ``<priority, 3 digits>:<instant, 20 digits>:<number>``: its order is that of the work.
"""

from __future__ import annotations

ENQUEUE = """
local uri, priority, at, number, body, now = unpack(ARGV)
local waiting = redis.call('HGET', 'uris', uri)
if waiting then
  redis.call('ZREM', 'ready', waiting)
  redis.call('ZREM', 'delayed', waiting)
  redis.call('HDEL', 'bodies', waiting)
  redis.call('HDEL', 'names', waiting)
end
local name = string.rep('0', 3 - #priority) .. priority .. ':'
  .. string.rep('0', 20 - #at) .. at .. ':' .. number
redis.call('HSET', 'uris', uri, name)
redis.call('HSET', 'names', name, uri)
redis.call('HSET', 'bodies', name, body)
if tonumber(at) <= tonumber(now) then
  redis.call('ZADD', 'ready', 0, name)
else
  redis.call('ZADD', 'delayed', at, name)
end
return 1
"""
"""Arguments: URI, priority, instant, number, body, now. Returns 1."""

LEASE = """
local count, now, lease = tonumber(ARGV[1]), ARGV[2], tonumber(ARGV[3])
for _, name in ipairs(redis.call('ZRANGEBYSCORE', 'delayed', '-inf', now, 'LIMIT', 0, 1000)) do
  redis.call('ZREM', 'delayed', name)
  redis.call('ZADD', 'ready', 0, name)
end
for _, name in ipairs(redis.call('ZRANGEBYSCORE', 'leased', '-inf', now, 'LIMIT', 0, 1000)) do
  redis.call('ZREM', 'leased', name)
  redis.call('HDEL', 'tokens', name)
  local uri = redis.call('HGET', 'names', name)
  if redis.call('HGET', 'uris', uri) then
    redis.call('HDEL', 'bodies', name)
    redis.call('HDEL', 'names', name)
  else
    redis.call('HSET', 'uris', uri, name)
    redis.call('ZADD', 'ready', 0, name)
  end
end
local token = redis.call('INCR', 'token')
local ends = string.format('%d', tonumber(now) + lease)
local found = {tostring(token)}
for _, name in ipairs(redis.call('ZRANGE', 'ready', 0, count - 1)) do
  redis.call('ZREM', 'ready', name)
  redis.call('ZADD', 'leased', ends, name)
  redis.call('HSET', 'tokens', name, token)
  redis.call('HDEL', 'uris', redis.call('HGET', 'names', name))
  found[#found + 1] = name
  found[#found + 1] = redis.call('HGET', 'bodies', name)
end
return found
"""
"""Arguments: count, now, duration. Returns the token, then name and body of each job."""

COMPLETE = """
local done = 0
for at = 2, #ARGV do
  local name = ARGV[at]
  if redis.call('HGET', 'tokens', name) == ARGV[1] then
    redis.call('HDEL', 'tokens', name)
    redis.call('ZREM', 'leased', name)
    redis.call('HDEL', 'bodies', name)
    redis.call('HDEL', 'names', name)
    done = done + 1
  end
end
return done
"""
"""Arguments: token, then names. Returns how many were leased under the token; they are gone."""
