"""Limits: every bound of fastjournal in one place, each with its reason.

Sizes are in bytes, times in microseconds, unless the name says otherwise. It is one long file on
purpose: a search for a bound ends here, and related bounds are adjacent.
Sections: protocol, daemon (by topic), clients, command log, compaction, spool.
"""

from __future__ import annotations

import math

# --- protocol ------------------------------------------------------------------------------------

KEY_BYTES_MAX = 4096
"""Bytes of a key or URI: long enough for any URL that browsers and servers accept in practice."""

REASON_BYTES_MAX = 4096
"""Bytes of the reason of a BURY: the last lines of a program's output. The envelope of an entry
with it stays under workq's 1 MiB."""

PRIORITY_MAX = 255
"""Priorities are 0 (first) to 255 (last): one byte of the order key."""

PRIORITY_DEFAULT = 128
"""The middle, with values above and below. It is priority 0 of workq."""

INSTANT_MAX = 2**64 - 1
"""Instants and durations are u64 on the wire."""

IDENTIFIER_MAX = 0xFFFF
"""Request identifiers are u16, so at most 65,536 requests of a connection are in flight."""

PAIRS_MAX = 0xFFFF
"""Pairs in one reply, and count of a request: the count field is u16."""

FAILED_ATTEMPTS_MAX = 0xFFFF
"""Largest max-attempts of a worker: workers know attempts from the metadata block, where they are
u16."""

VALUE_BYTES_MAX = 1_000_000
"""Default of max-value: with its envelope such a value stays under workq's 1 MiB payload."""

VALUE_BYTES_LIMIT = 2**32 - 2
"""Upper bound of max-value: the size on the wire is u32 and counts the type byte."""

REPLY_BYTES_MAX = 4 * 1024 * 1024
"""Default of max-reply: large enough for 64 jobs of 64 KiB, small enough to send in one piece."""

ERROR_SENTENCE_BYTES_MAX = 1024
"""Bytes of an error text: a code and one sentence."""

# --- daemon: clock, delays, tombstones -----------------------------------------------------------

CLOCK_SKEW_US_MAX = 60_000_000
"""Default of max-clock-skew: hosts that run NTP are far closer than a minute."""

CLOCK_STEP_US_MIN = 1_000_000
"""A clock that is off the steady one by more than this was set, or the machine was suspended: NTP
slews both alike, and a process that waits for a CPU between two checks is not so late."""

POSTPONE_US_MAX = 3600 * 1_000_000
"""Default of max-postpone: a resource that changes all the time is processed once an hour. It
bounds short delays only; a longer delay is kept."""

REPLACED_PAIRS_MAX = 100
"""Pairs of domains for which jobs that gave way to another domain are counted apart."""

TAKEN_URIS_BYTES_MAX = 1024 * 1024
"""Memory of the latest jobs that gave way to another domain, to explain where they are: some 2,000
with keys of a usual length."""

TAKEN_URI_BYTES = 400
"""Memory of one of them, without keys and URI."""

LEASE_US_DEFAULT = 24 * 3600 * 1_000_000
"""Default of default-lease: a day, for work of unknown length."""

TOMBSTONE_TTL_US = 3600 * 1_000_000
"""Default of tombstone-ttl: longer than a usual backlog of a forwarder is resent out of order."""

TOMBSTONES_MAX = 1_000_000
"""Default of tombstones-max: about 400 MB of memory for keys of a usual length."""

TOMBSTONES_BYTES_MAX = 512 * 1024 * 1024
"""Default of tombstones-bytes-max: tombstones-max usual keys, or 120,000 of the longest."""

TOMBSTONE_BYTES = 320
"""Memory of a tombstone without its key."""

TOMBSTONES_DROPPED_MAX = 1000
"""Expired tombstones that are dropped in one pass of the timers: a millisecond of work. So those of
a quiet hour are dropped without any further request."""

# --- daemon: connections and admission control ---------------------------------------------------

CONNECTIONS_MAX = 10_000
"""Default of max-connections: under the usual limit of open files of a service."""

INFLIGHT_BYTES_MAX = 256 * 1024 * 1024
"""Default of max-inflight, the memory budget of all connections, above which memory is scarce: 64
of the largest replies, or 256 of the largest values in flight."""

SCARCE_BYTES = 4096
"""While memory is scarce: bytes that a session reads at once, bytes of replies that it buffers, and
the largest value in a reply. With its decoded requests a connection then holds less than 64 KiB,
640 MB for the default of max-connections."""

SCARCE_PARTIAL_BYTES = 64 * 1024
"""While memory is scarce: bytes of an incomplete request. Usual requests continue."""

SLOW_READER_SECONDS = 5.0
"""While memory is scarce: time after which a client that reads nothing is disconnected. A client
that is only slow reads 64 KiB in that time."""

SEND_BYTES_MAX = 64 * 1024
"""Bytes sent in one piece: a client that reads so much is not idle."""

REQUEST_OBJECT_BYTES = 256
"""Memory of a decoded request without its key and value."""

REQUEST_BYTES_PER_SECOND = 64 * 1024
"""Rate for which a large value extends request-timeout: that of a slow line."""

REQUEST_SECONDS_MAX = 60
"""Default of request-timeout: a client with half a request has no reason to delay the rest."""

SEND_SECONDS_MAX = 300
"""Default of send-timeout: a client that is stopped in a debugger for a while survives."""

IDLE_SECONDS_MAX = 24 * 3600
"""Default of idle-timeout: default-lease, after which a silent worker has lost its lease anyway."""

RECEIVE_BYTES_MAX = 64 * 1024
"""Bytes of one read of a socket: some 300 usual requests, three milliseconds of work for one
client."""

REPLIES_BYTES_MAX = 1024 * 1024
"""Bytes of replies of one connection that are buffered before they are sent: one read may contain
thousands of requests, each with a reply of megabytes."""

REFUSALS_MAX = 64
"""Connections over max-connections that get an error reply at a time; further ones are closed at
once."""

# --- daemon: scheduler, leases, dead letters, domains --------------------------------------------

NEXT_ENTRIES_MAX = 500
"""Entries of one NEXT, also for a larger count: about 5 ms of work, so no client waits longer."""

ADVANCE_WORK_MAX = 1000
"""Work of one pass over entries whose delay, lease or ttl ended, about 100: if a million end at
midnight, requests are served between the passes."""

KICK_ENTRIES_MAX = 250
"""Entries of one KICK of a domain, also for a larger count: each is rewritten, 20 us of work."""

KICK_BYTES_MAX = 1024 * 1024
"""Bytes of keys and values of one KICK of a domain: they are rewritten in one piece, in 4 ms."""

KICK_LOOKS_MAX = 5000
"""Buried entries that one KICK of a domain examines, with those that others have locked: 3 ms."""

PURGE_ENTRIES_MAX = 250
"""Entries of one PURGE, also for a larger count: a record and a tombstone each, 10 us of work."""

PURGE_LOOKS_MAX = 5000
"""Entries that one PURGE examines, with those that others have locked: 3 ms."""

PAUSED_DOMAINS_MAX = 100_000
"""Domains that are paused at a time, with entries or without."""

PAUSED_BYTES_MAX = 64 * 1024 * 1024
"""Memory of paused domains: PAUSED_DOMAINS_MAX of usual names, or 14,000 of the longest."""

PAUSE_BYTES = 540
"""Memory of a paused domain without its name."""

PAUSE_RESERVE_BYTES = 16 * 1024
"""Records of pauses that a read-only daemon takes until it is writable again: an operator stops the
work in an incident, and nobody fills the reserve of the disk by it. A small part of the least one.
"""

PAUSE_RECORD_BYTES = 96
"""Record of a pause without the name of its domain, at least."""

RETRY_DELAY_US = 1_000_000
"""Delay after the first failed attempt of an entry, unless the worker names another."""

RETRY_DELAY_US_MAX = 259_200_000_000
"""Longest delay after a failed attempt: the delay doubles with each attempt. So the last of
ATTEMPTS_MAX attempts begins 21 days after the first has failed."""

ATTEMPTS_MAX = 25
"""Failed attempts after which the daemon buries an entry, unless its options or a LIMIT say
otherwise."""

LIMIT_MAX = (1 << 63) - 1
"""Largest number in a LIMIT: intervals are added to instants, and JSON readers have 64 bits."""

LIMIT_VALUE_BYTES_MAX = 4096
"""Bytes of the JSON object of a LIMIT: some twenty times the size of all its names. A value of
max-value takes 6 ms to decode."""

NEXT_DOMAINS_MAX = 64
"""Domains that one NEXT may name in its value."""

NEXT_PREFIX_BYTES_MAX = 255
"""Longest prefix of the names of domains in a NEXT."""

CYCLES_MAX = 4096
"""Lists of domains and prefixes of NEXTs whose turn the daemon remembers."""

NEXT_VALUE_BYTES_MAX = 4096
"""Bytes of the JSON object of a NEXT, which is kept while the request waits."""

LIMITED_DOMAINS_MAX = 100_000
"""Domains with limits of their own at a time, with entries or without. Others have the default."""

LIMITED_BYTES_MAX = 64 * 1024 * 1024
"""Memory of limited domains: LIMITED_DOMAINS_MAX of usual names, or 14,000 of the longest."""

INTERVALS_MAX = 1_000_000
"""Domains whose interval after a delivery runs; beyond it the interval that ends first ends early.
Also domains whose last delivery is restored at a start."""

INTERVALS_BYTES_MAX = 512 * 1024 * 1024
"""Memory of these domains: INTERVALS_MAX of usual names, or 120,000 of the longest."""

INTERVAL_BYTES = 300
"""Memory of such a domain without its name."""

LIMIT_BYTES = 540
"""Memory of a limited domain without its name."""

WORKERS_MAX = 100
"""Workers in the reply to a STATS with META: 15 kB, and more than a screen shows."""

WORKER_DOMAINS_MAX = 20
"""Domains that STATS names of those for which a worker waits."""

WORKER_ROW_WORK = 10
"""Work per worker, in microseconds."""

BUSY_WORKERS_LOOKS_MAX = 1000
"""Workers with leases that STATS of a domain or an entry looks at, to see whether they serve it."""

BUSY_WORKERS_A_UNIT = 4
"""Of these in a microsecond."""

OLDEST_DUE_LOOKS_MAX = 1000
"""Entries that a STATS of the daemon compares for the age of the oldest, one for each domain and
priority with a due entry. Under 5 ms of work; /metrics compares all, in slices."""

UNDELIVERED_RELEASED_MAX = 100
"""Leases of unsent replies that are released in one pass: a millisecond of work. A connection may
have leased thousands in replies that it did not read."""

# --- daemon: scans -------------------------------------------------------------------------------

EXPRESSION_BYTES_MAX = 4096
"""Bytes of a regular expression: as long as the keys that it matches."""

EXPRESSION_INSTRUCTIONS_MAX = 3000
"""Instructions of a compiled regular expression: common ones for URLs have up to 2,900 if they
count characters. One match takes up to 10 ns for each instruction and byte of the key. A match that
may take over a millisecond runs in a thread."""

EXPRESSION_CLASSES_MAX = 32
"""Unicode classes (``\\p``) of a regular expression: each takes 70 us to compile."""

MATCHED_KEYS_MAX = 200
"""Keys of a scan that a thread matches with an expression in one pass."""

MATCHED_WORK_MAX = 10_000_000
"""Instructions times bytes of keys that a thread matches in one pass: under 100 ms, usually under
one."""

EXPRESSION_MEMORY_BYTES = 256 * 1024
"""Memory of RE2 for one expression; the last 128 are kept, so 32 MiB for all."""

SCAN_STEP_WORK = 400
"""Work of one step of a scan, in units of about a microsecond at the worst."""

SCANS_MAX = 16
"""Scans that build a reply at the same time; others wait. A reply of 65,535 small pairs with
metadata takes 15 MB while it is built."""

SCAN_HELD_BYTES_MAX = 16 * 1024
"""Bytes of pairs that a scan may hold without such a place."""

SCAN_SHARED_PAGE_WORK = 2_400
"""Work after which a scan ends its page if other clients work meanwhile: three slices of its own,
and their turns."""

SCAN_OTHERS_WORK = 1_000
"""Work of others from which a scan counts as beside them."""

MERGED_KEYS = 200
"""Keys that are merged into the key index in one pass, up to 5 us each."""

FRESH_KEYS_MAX = 8192
"""Most recently added keys, beyond which the oldest get into a sorted run: those of some 4,000
jobs. Jobs that are removed before cost the index next to nothing."""

SORTED_KEYS = 2048
"""Keys that become a sorted run in one pass, under 2 ms."""

UNSORTED_KEYS_READ = 512
"""Most keys that each step of a scan sorts: more become a sorted run first."""

RUN_KEYS_KEPT = 65_536
"""Keys of sorted runs that are merged only while the daemon is idle: a few runs do not slow a scan.
Beyond it some are merged in a slice of a turn."""

RUN_BYTES_KEPT = 16_777_216
"""The same in bytes of these keys: keys of deleted entries are only there."""

GONE_KEYS_MAX = 4096
"""Removed keys beyond which some are deleted from the index in a slice of a turn, if the daemon is
never idle: a scan may visit each of them."""

GONE_KEYS_KEPT = 3072
"""Removed keys that are left after such a slice: it deletes few keys if few were removed."""

GONE_KEYS_LEFT = 8192
"""Further removed keys beyond which some are deleted after the requests of a session, in any turn:
their own turn has not come."""

GONE_BYTES_LEFT = 25_165_824
"""Memory of removed keys beyond which some are deleted in the same way: for fewer, long keys."""

RELIEVED_KEYS = 600
"""Most keys deleted after the requests of a session: more than its requests remove."""

SCAN_LEASES_MAX = 1000
"""Entries that one GET leases: all in one pass, as NEXT does."""

# --- daemon: value cache -------------------------------------------------------------------------

READ_AHEAD = 64
"""Requests after one whose value is read from disk: their values are read with it (prefetch)."""

FETCHES_MAX = 4
"""Requests whose values are read from disk at a time, each as much as one reply holds."""

COLD_BYTES_MIN = 64
"""Smallest value that is evicted: a smaller one frees too little memory."""

# --- daemon: links and locks ---------------------------------------------------------------------

LINKS_PER_ENTRY_MAX = 64
"""Further keys of one entry by LINK: each takes a slot of the key table."""

LINK_BYTES_MAX = 32 * 1024
"""Bytes of all links of an entry: with a value of VALUE_BYTES_MAX an envelope stays under workq's 1
MiB."""

LOCKS_PER_CONNECTION_MAX = 1000
"""Entries that one connection has locked: under 10 ms of work to unlock all when it ends."""

LOCKS_MAX = 200_000
"""Entries that all connections have locked: 56 MB."""

LOCK_US_DEFAULT = 60_000_000
"""Duration of a LOCK that states none: enough for a program's change, and short enough for a
program that hangs."""

# --- daemon: waiting requests --------------------------------------------------------------------

SERVED_MAX = 100
"""Waiting requests that are answered or end in one pass: if a hundred thousand wait for one domain,
other requests are served between the passes."""

SERVE_WORK_MAX = 2000
"""Work of one pass over waiting requests: beyond it no request is begun. One may lease 500
entries."""

READY_DOMAINS_MAX = 500
"""Domains with new ready entries that one pass over waiting requests examines."""

WAITS_PER_CONNECTION_MAX = 64
"""Waiting NEXTs of one connection: a client that stops reading holds the reply of each in memory. A
worker with more tasks opens more connections."""

WAITS_MAX = 100_000
"""Waiting NEXTs of all connections."""

WAITS_BYTES_MAX = 128 * 1024 * 1024
"""Memory of waiting NEXTs: WAITS_MAX for domains of usual names, or 27,000 of the longest."""

# --- daemon: publish/subscribe -------------------------------------------------------------------

SUBSCRIPTIONS_PER_CONNECTION_MAX = 1000
"""Subscriptions (LISTEN) of one connection: a few for each thing that a program shows or caches."""

SUBSCRIPTIONS_MAX = 100_000
"""Subscriptions of all connections: at most 100,000 comparisons for each key that changes."""

MATCH_STEPS_MAX = 500
"""Steps of matching in one pass: about a millisecond of work, except an expression that alone takes
longer."""

MATCH_SLICE_WORK = 2000
"""Work of matching in a turn of the event loop; clients have the rest of it."""

CHANGES_BYTES_MAX = 16 * 1024 * 1024
"""Changed keys that wait for the lookup in the indexes of subscriptions, some 50,000. Beyond it the
connections with most of that work, and more than their share, lose their subscriptions."""

CHANGES_STOP_BYTES = 4 * CHANGES_BYTES_MAX
"""Bytes of unmatched changed keys above which no requests are read (backpressure). Only many
changes in one round of the event loop reach it, not subscriptions."""

MATCH_WORK_MAX = 400_000
"""Debt of a connection: work of matching and notifications that is not paid back, 0.2 to 0.8 s. It
allows a burst, as of 30 changes that 1,000 ranges contain. Beyond it its subscriptions end."""

MATCH_WORK_A_CHANGE = 16
"""Work for one connection that each matched change pays back: that of a SET and its
notification."""

MATCH_SPARE_PARTS = 10
"""Idle microseconds of the daemon, or units of work for requests, that pay back a unit of this
work: a tenth of a CPU, or 1,000 expressions without a literal prefix for 300 changes a second."""

EXPRESSION_STEPS_A_UNIT = 4
"""Steps of matching expressions that are a unit of this work: steps are those of the worst keys,
and beside a SET, usual keys take an eighth (tests/bench/bench_pubsub.py)."""

SEARCH_QUEUE_BYTES_PER_CONNECTION_MAX = 4 * 1024 * 1024
"""Bytes of keys in the match queue of one connection's expressions, some 10,000 keys; beyond it
these subscriptions end."""

SEARCH_QUEUE_BYTES_MAX = 64 * 1024 * 1024
"""Bytes of keys in the match queues of all connections; beyond it the subscriptions by expression
of the connection with most of them end."""

SEARCH_AT_ONCE_STEPS = 60
"""Steps of matching the expressions of one connection with a key that are done at once, without a
queue: some 20 usual expressions, of which 60 bytes take some 10 us."""

SEARCH_QUEUE_TURN_STEPS = 100
"""Steps of matching expressions of one connection, before the next has its turn."""

EXPRESSION_SET_INSTRUCTIONS = 200
"""Instructions of expressions that are matched together: a match takes no longer than that of one
large expression."""

LONG_MATCH_WORK = 100_000
"""Instructions times bytes of a key, about a millisecond at the worst: a longer match runs in a
thread."""

LONG_MATCHES = 8
"""Long matches of one key for one connection, before the next has its turn."""

INSTRUCTION_MEMORY_BYTES = 512
"""Memory of RE2 for each instruction of subscribed expressions: twice the minimum for a large
one."""

SET_MEMORY_BYTES_MIN = 16 * 1024
"""Memory of RE2 for a small set of subscribed expressions."""

SUBSCRIPTIONS_BYTES_PER_CONNECTION_MAX = 24 * 1024 * 1024
"""Memory of the subscriptions of one connection, compiled expressions included: 1,000 usual
ones."""

SUBSCRIPTIONS_BYTES_MAX = 256 * 1024 * 1024
"""Memory of the subscriptions of all connections; equal expressions count once. Enough for 100,000
usual keys or ranges."""

NOTIFICATIONS_BYTES_PER_CONNECTION_MAX = 16 * 1024 * 1024
"""Notification queue of a client that does not read: some 50,000 changed keys. Beyond it the
connection is closed, so that no change is lost silently."""

NOTIFICATIONS_AHEAD = 16
"""Notifications whose evicted values are read from disk together."""

NOTIFICATIONS_BYTES_MAX = 256 * 1024 * 1024
"""Notification queues of all connections; beyond it the connection with most is closed."""

NOTIFICATIONS_TURN_BYTES = 8 * 1024
"""Bytes of notifications sent to a connection in one piece, a millisecond of work. Later changes of
a key in the queue are merged."""

NOTIFICATION_TURNS_A_ROUND = 4
"""Connections that get such a piece in one round of the event loop: with many subscribers of the
same keys, others wait some 4 ms at most."""

WOKEN_A_ROUND = 25
"""Connections whose delivery begins in one round of the event loop, 2 ms of work."""

EARLY_DELIVERIES_BYTES_MAX = 4 * 1024 * 1024
"""Keys that were notified before they were matched, some 10,000, kept against duplicates. Beyond it
some are notified twice."""

# --- daemon: access tokens and TLS ---------------------------------------------------------------

CLIENT_NAME_BYTES_MAX = 100
"""Name that a client gives itself, for people: more is cut off."""

AUTH_TOKEN_BYTES_MAX = 1024
"""Bytes of an access token: far more than a random one needs, and cheap to hash."""

AUTH_TOKENS_MAX = 1000
"""Access tokens of a daemon: every AUTH is compared with all of them, in 0.2 ms."""

AUTH_FILE_BYTES_MAX = 1024 * 1024
"""Bytes of the file of access tokens: a kilobyte of rights and prefixes each."""

AUTH_SECONDS = 10
"""Default of auth-timeout: a client sends AUTH with its first packet."""

AUTH_FAILURES_MAX = 3
"""Wrong tokens on one connection; then it is closed."""

AUTH_FAILURE_SECONDS = 1.0
"""Delay of the reply to a wrong token: only its sender waits."""

HANDSHAKES_MAX = 256
"""Concurrent TLS handshakes; beyond it the oldest unfinished one is closed. Each holds some 50 KB
and costs a millisecond."""

HANDSHAKES_PER_ORIGIN_MAX = 128
"""Concurrent TLS handshakes of one address (of IPv6: of a network of 64 bits): as many as a host of
workers that starts begins within a round trip, and half of all."""

HANDSHAKE_SECONDS_MAX = 10.0
"""Time from connecting to the end of the TLS handshake."""

HANDSHAKE_STEPS_A_TURN = 3
"""Steps of handshakes in one turn of the event loop, for all addresses: about a millisecond each,
with an RSA key of 2,048 bits."""

# --- daemon: HTTP, log lines, metrics, descriptors, disk -----------------------------------------

HTTP_CONNECTIONS_MAX = 32
"""Concurrent HTTP connections; beyond it the one with the oldest request is closed. The use is a
few scrapers and health checks."""

HTTP_HEAD_BYTES_MAX = 16 * 1024
"""Bytes of request line and header fields of an HTTP request: enough for browsers and proxies."""

HTTP_SECONDS_MAX = 10.0
"""Time of an HTTP client for each of: TLS handshake, head, body, and reading the reply. It is the
default scrape timeout of Prometheus."""

STDERR_LEVEL_BYTES_MAX = 512 * 1024
"""Bytes of log lines of one level that wait for a reader of standard error: some 2,000 lines, with
STDERR_LINE_OVERHEAD added to each. A line beyond it is dropped, and counted."""

STDERR_LINE_OVERHEAD = 150
"""Memory of a log line in the queue without its text, in bytes."""

STDERR_SECONDS_MAX = 1.0
"""Time to write the last log lines at the end of a process; after it they are dropped."""

COUNTED_DOMAINS_MAX = 1_000
"""Domains whose completed and failed jobs are counted apart since the start; 2 KiB for each."""

METRICS_DOMAINS_MAX = 20
"""Domains with metrics of their own: each is a time series in a database."""

PAGE_DOMAINS_MAX = 20
"""Domains in each table of the page: the list of all domains has the others."""

PAGE_ENTRIES_MAX = 100
"""Rows of a list of domains or entries on one page."""

PAGE_LOOKS_MAX = 1000
"""Keys of the index that a search of the page examines, with keys of deleted entries."""

PAGE_UNSERVED_SECONDS = 60
"""Time for which an entry is due without a worker until the page marks its domain."""

PAGE_WALK_MAX = 200_000
"""Entries of one kind that the page looks at for groups, orders and filters, in slices: 0.7 s
where half of them have errors of their own."""

PAGE_GROUPS_MAX = 1000
"""Groups of errors that the page tells apart."""

PAGE_RATE_MINUTES = 60
"""Minutes of which the page has rates."""

PAGE_RATE_DOMAINS_MAX = 20
"""Domains of which the page has rates, each in 20 kB: those where most happens."""

PAGE_ACTION_ENTRIES_MAX = 10_000
"""Entries that one confirmed action of the page changes; the rest is confirmed anew."""

PAGE_FORM_BYTES_MAX = 16 * 1024
"""Bytes of a form of the page: a reason, all of it escaped, or an access token."""

PAGE_SESSIONS_MAX = 100
"""Browsers that are logged in to the page; for one more, the one seen longest ago is logged out."""

PAGE_SESSION_IDLE_SECONDS = 3600.0
"""Time without a request after which a browser is logged out."""

PAGE_SESSION_SECONDS = 12 * 3600.0
"""Time after which a browser is logged out in any case."""

PAGE_TEXT_MAX = 160
"""Characters of a key, a URI or a reason in a table of the page; longer ones are cut."""

FILES_RESERVED = 64 + REFUSALS_MAX + HTTP_CONNECTIONS_MAX
"""Open files that are not for connections: listeners, segments, snapshots, refusals, HTTP. With TLS
the handshakes come on top."""

MIN_FREE_BYTES = 64 * 1024 * 1024
"""Default of min-free-bytes: one segment; below it the daemon is read-only."""

FREE_INODES_MIN = 64
"""With fewer free inodes the file system of the log counts as full: requests of workers that finish
need new segments, and compaction needs files beside these."""

# --- daemon: remote log --------------------------------------------------------------------------

REMOTE_LAG_BYTES_MAX = 64 * 1024 * 1024
"""Default of remote-lag-bytes-max: what a burned machine may lose with async, a segment."""

REMOTE_POLL_MS = 500
"""Default of remote-poll: two requests a second of a standby, a small part of takeover-after."""

TAKEOVER_AFTER_S = 15
"""Default of takeover-after: three beats of an idle primary."""

BEAT_US_MAX = 5_000_000
"""Longest time between two chunks of an idle primary; shorter where takeover-after is."""

REMOTE_KEEP_S = 7 * 24 * 3600
"""Default of remote-keep: a mistake of Friday is undone on Monday."""

# --- daemon: units of work -----------------------------------------------------------------------

# All work that blocks the event loop is counted in units of about a microsecond, where it is done
# and on the safe side. tests/unit/test_engine_work.py compares executed lines with these numbers.

REQUEST_WORK = 10
"""Work of any request, with its reply."""

BATCH_WORK = 40
"""Work of one receive of a session, without its requests: some wake-ups of its task, and system
calls to receive and to send."""

HANG_UP_WORK = 170
"""Work of the end of a connection: start of a task, some system calls, and clean-up of its
state."""

JOIN_WORK = 25
"""Work of one receive whose request joins a shared batch: the commit is shared by all of them."""

ENTRY_WORK = 10
"""Work of an entry that is leased, removed, kicked, or whose delay, lease, lock or ttl ends."""

RUN_OUT_WORK = 12
"""Work of a lease that runs out: its entry is delayed or buried, and counted."""

COUNTED_DOMAIN_WORK = 3
"""Work of a domain whose jobs are counted apart from now on, and of one that is in a sum of all."""

HOLD_WORK = 5
"""Additional work of a delivery if domains have limits: the domain may be held."""

DOMAIN_WORK = 2
"""Work of a domain that is examined for waiting requests."""

NAMES_SORTED_A_UNIT = 2
"""Domains whose names are put into the index of prefixes in a microsecond, at the first NEXT with a
prefix."""

COMPILE_WORK = 100
"""Work of compiling a regular expression, without its bytes."""

COMPILED_BYTE_WORK = 2
"""Work of each byte of it: 4,096 of them may take 7 ms."""

MERGE_WORK = 4
"""Work of a key that is merged into the key index."""

SORTED_KEYS_A_UNIT = 8
"""Keys not merged into the key index that are sorted in a unit of work."""

DUE_LOOK_WORK = 3
"""Work of an entry that is compared for the age of the oldest."""

KICK_LOOKS_A_UNIT = 2
"""Buried entries that a KICK examines, for a unit of work."""

PURGE_LOOKS_A_UNIT = 2
"""Entries that a PURGE examines, for a unit of work."""

TOKENS_A_UNIT = 5
"""Access tokens that an AUTH is compared with, for a unit of work."""

LEASES_A_UNIT = 10
"""Leases of one token that are listed again if one of the entries is renamed, for a unit of
work."""

UNLOCK_WORK = 7
"""Work of a lock that ends with its connection."""

HANG_UP_LOOK_WORK = 5
"""Work of a check whether the client of a waiting NEXT has disconnected: some system calls."""

WAIT_END_WORK = 10
"""Work of the end of a waiting NEXT whose client has disconnected."""

READ_BYTES_A_UNIT = 16
"""Bytes of requests that are not decoded yet, for a unit of work: their real work is unknown."""

WRITTEN_BYTES_A_UNIT = 512
"""Bytes of values written to records (packed, checksummed and copied), for a unit of work."""

WRITTEN_BYTES_MIN = 4096
"""Smallest value of a SET whose bytes count in addition to its request."""

COPIED_BYTES_A_UNIT = 8192
"""Bytes of values that are copied (cut, filled up, or put into replies), for a unit of work."""

ASIDE_WORK_MAX = 1000
"""Additional work of a NEXT: records rewritten, links and keys removed."""

CALL_WORK_MAX = 10_000
"""Work of one call of the engine: a part of the expired timers, and a NEXT of 500 entries or a KICK
of some megabytes. It is counted on the safe side: 3 to 5 ms are measured."""

TURN_WORK = 2500
"""Work of one turn of the event loop, from one poll of the sockets to the next: beyond it no
client's requests are begun. The excess of the last call is subtracted from the next turns."""

SLICE_WORK = 800
"""Work of one client at a time if there are others: some 80 requests of a window, or a part of a
scan. So a small request between two large ones waits for a millisecond or two."""

ALONE_WORK = 100 * TURN_WORK
"""Work of one client without any other, after which it may use a whole turn at a time: some 0.2 s.
Large windows take up to a tenth less time then."""

CREDIT_WORK = 500
"""Credit of a client that was idle: its requests up to this work come before those of busy
clients."""

# --- clients -------------------------------------------------------------------------------------

WAIT_WITHOUT_END = math.inf
"""Seconds of a NEXT that waits without a limit."""

INSTANT_US_MIN = 946_684_800_000_000
"""The year 2000. An earlier instant that a program passes is a duration, or in another unit."""

INSTANT_US_MAX = 253_402_300_799_999_999
"""The end of the year 9999: the last instant of a datetime. Milliseconds that a program passes as
seconds are later."""

DURATION_US_MAX = 366 * 86_400 * 1_000_000
"""A year: a longer delay is in microseconds by mistake (60,000,000 s are 694 days)."""

LEASE_US_MIN = 1_000
"""Shortest lease that a program may ask for: a shorter one ends before the reply arrives."""

LEASE_US_MAX = 366 * 86_400 * 1_000_000
"""Longest lease that a program may ask for. A lease of 32 s, passed in microseconds, is longer."""

CLIENT_IN_FLIGHT_MAX = 8192
"""Requests of one client connection without a reply: far under the 65,535 identifiers."""

CLIENT_UNSENT_BYTES_MAX = 256 * 1024
"""Encoded requests that wait for the socket; beyond it the caller waits (backpressure)."""

CLIENT_REPLY_BYTES_MAX = 64 * 1024 * 1024
"""Default reply_bytes_max of a client: many times max-reply, because a single pair may exceed
max-reply."""

SOCKET_WAIT_S_MAX = 1_000_000.0
"""Seconds of one wait for a socket: poll() takes 24.8 days at most, so longer waits are several."""

CLIENT_PATIENCE_S = 30.0
"""Default patience of a client with lost connections."""

CLIENT_PATIENCE_FAILOVER_S = 60.0
"""The same with several addresses: a standby takes over after 15 s of silence, and then starts."""

CLIENT_KEEPALIVE = {"TCP_KEEPIDLE": 15, "TCP_KEEPINTVL": 5, "TCP_KEEPCNT": 3}
"""Socket options, by name: a client that waits for work notices a lost machine after 30 s."""

CONNECT_TRY_S_MIN = 1.0
"""Minimum seconds of an attempt to connect, so that it can succeed."""

CLIENT_REPEATS_MAX = 4
"""Retries of a request on new connections: a request that kills connections must end."""

TIMESTAMP_AHEAD_US_MAX = CLOCK_SKEW_US_MAX
"""Lead of write timestamps over the clock after it stepped back: the daemon accepts them, and the
newest wins. It refuses those further ahead, so no smaller timestamp loses against a refused one."""

TIMESTAMP_SLICE_US = 16_000_000
"""Slice of time whose last write timestamp is kept: well under the accepted clock skew, because in
a repeated slice timestamps begin after that one."""

TIMESTAMP_SLICES_MAX = 8192
"""Slices of time whose last write timestamp is kept: 36 hours of constant writing, and less than
1 MB."""

LISTENER_KEYS_MAX = 10_000
"""Changed keys that wait for a listener; beyond it they are dropped, and the listener gets
MISSED."""

LISTENER_BYTES_MAX = 64 * 1024 * 1024
"""Bytes of the values of changes that wait for a listener."""

LISTENER_PING_S = 30.0
"""Silence after which a listener checks that the daemon is alive."""

JOBS_WAIT_US_MAX = 30_000_000
"""Longest wait of a job loop for work: then it repeats the request, and so detects a dead
connection."""

JOBS_WAIT_BESIDE_WORK_US_MIN = 1_000_000
"""Shortest wait of a worker for more work while some of it runs: a shorter one only adds
traffic."""

LEASE_RENEWAL_PAUSE_S_MIN = 0.1
"""Pause before a failed lease renewal is retried, just before the lease ends."""

JOB_LEASE_S = 300.0
"""Default lease of clients, which job loops renew: by then a killed worker is detected."""

JOB_LEASE_US_MIN = 1_000_000
"""Shortest lease with lease renewal, which is sent three times per lease: a shorter one ends before
a slow reply arrives."""

CLIENT_LAST_WORDS_S = 5.0
"""Seconds for a cancelled task, or a closed client, to release its leases."""

CLIENT_SNAPSHOT_S = 3600.0
"""Seconds that SNAPSHOT and REMOTE may take beyond the usual silence: they remove many large files,
or upload the log, and later requests of their connection are answered after them."""

SCAN_PAGE_ENTRIES = 1000
"""Entries that the iterators over ranges request at a time: a round trip costs little for each, and
the daemon serves other clients in between."""

IMPORT_BATCH_ITEMS = 500
"""Items of an import in flight at a time: a round trip and a sync cost little for each."""

IMPORT_BATCH_BYTES = VALUE_BYTES_MAX
"""Bytes of the values of an import in flight at a time. So a value over the usual max-value is sent
alone, because the daemon closes the connection of its sender."""

# --- command log ---------------------------------------------------------------------------------

SEGMENT_BYTES_MAX = 64 * 1024 * 1024
"""Default of cmdlog-seg-size: workq's default; a Spark partition of a comfortable size."""

LOG_PAYLOAD_BYTES_MAX = 1024 * 1024
"""Bytes of a payload or result: workq refuses a larger one."""

READ_LOCK_PATIENCE_S = 10.0
"""Time that a reader of a log waits for the replacement of a segment, which is usually short."""

ARCHIVE_GAPS_MAX = 1000
"""Spans of segments that the state of an archive lists as missing; beyond it the oldest are joined,
so that its file stays small."""

ARCHIVE_LOOK_SECONDS = 1.0
"""Time between two checks for sealed segments that wait for their link in the archive."""

ARCHIVE_RETRY_SECONDS = 10.0
"""Time between two attempts to link segments after a failure."""

# --- compaction ----------------------------------------------------------------------------------

FILTERED_BYTES_MAX = 64 * 1024
"""Bytes of a segment that compaction examines before it yields: under 2 ms of work."""

FILTERED_RECORDS_MAX = 500
"""Records that compaction assembles, or whose new locations it gives to entries, before it yields:
under 2 ms of work."""

COPIED_ENTRIES_MAX = 100
"""Entries that compaction copies forward before it waits until they are durable: under 2 ms of
work."""

WRITTEN_BYTES_MAX = 1 << 20
"""Bytes of a rewritten segment between two syncs: they delay the syncs of the log, on the same
disk, by 1 to 2 ms."""

AWAITED_SEGMENTS_MAX = 16
"""Segments in the list of those that a segment waits for before its removal records are dropped."""

UNDERSIZED_SEGMENTS_MAX = 16
"""Undersized segments that wait for others to be compacted; beyond it these others are compacted,
even with few dead records."""

COMPACTION_RETRY_US = 3600 * 1_000_000
"""Time after which compaction examines a segment again that it could not make much smaller, and
whose records do not expire."""

# --- spool ---------------------------------------------------------------------------------------

SLOT_SECONDS = 3600
"""Default length of a spool slot: one file an hour."""

SPOOL_BYTES_MAX = 16 * 1024**3
"""Default of spool_bytes_max: beyond it an append raises SpoolFullError instead of filling the
disk."""

SPOOL_FRAME_BYTES_MAX = 64 * 1024 * 1024
"""Bytes of one spooled frame; a larger size field is damage, not a request."""

MOVED_US_MAX = 1_000_000
"""Time between two checks of a writer whether the path still leads to its slot. A deleted slot is
detected at each append; a slot that was moved away gets records for this time at most."""

SLOT_LOCK_TRIES_MAX = 20
"""Tries of a writer to lock a slot, with a pause of a millisecond: the forwarder holds its lock for
as long while it deletes a slot. No other program has a reason to lock one."""

FURTHER_SLOTS_MAX = 3
"""Further slots of the same time, named after the next seconds, that a writer tries if another
program holds the lock of one: an append waits 80 ms at most, and then fails."""

DROP_IN_NAME_BYTES_MAX = 200
"""Bytes of the file name of a drop-in: the names in dead/ are 31 bytes longer, and a file system
takes 255."""

OPEN_SLOTS_MAX = 256
"""Slots that a forwarder has open: a backlog of months has thousands of files, and a process may
open 1,024. With a lower limit it is half of the files without OTHER_FILES_MAX."""

OTHER_FILES_MAX = 36
"""Files that a forwarder opens besides slots: 19 while it waits, and more for a connection and
FORWARDER_HTTP_CONNECTIONS_MAX scrapers."""

RETRY_RANGES_MAX = 16 * 1024
"""Positions of delayed records that a forwarder holds one by one, and as many of suspects, in some
300 bytes each; beyond it those of each slot become one range. Frames are not kept, so this bounds
only how exactly each record is retried when its own pause is over."""

FIRST_RECORDS_MAX = 16
"""Records that a forwarder sends from a slot before it has erased one there: if the disk refuses to
erase, at most so many are sent again at the next start."""

UNERASED_MAX = 1024
"""Delivered records that a forwarder could not erase, and keeps in a list so as not to send them
again; beyond it only one record is sent from each slot, not ``FIRST_RECORDS_MAX``, until it is
erased."""

RESCAN_US = 5_000_000
"""Longest time between two scans of the spool by a forwarder; also the time for which it skips a
slot that fails, and ``dead/`` if that cannot be written."""

SUSPECT_LOSSES = 2
"""Connections that end with a record in flight before it is sent alone: once may be chance."""

SUSPECT_GAP_US = 1_000_000
"""Time without suspects after one ended another connection: with any number of suspects, the other
records lose one connection a second."""

SKIP_AFTER = 4
"""Suspects in a row after which more and more untried records are skipped in search of a good
one."""

SKIP_MAX = 64 * 1024
"""Records skipped in one pass: the forwarder checks this number of records in a second or two."""

NO_PROGRESS_US_MAX = 30_000_000
"""Time without an answered record after which a forwarder closes a connection with requests in
flight, and tries the next daemon of its list. The largest frame in flight extends it, at
REQUEST_BYTES_PER_SECOND."""

RETRY_PAUSE_US_MAX = 30_000_000
"""Longest pause between two attempts of the forwarder (back-off)."""

FORWARDER_HTTP_CONNECTIONS_MAX = 16
"""Concurrent HTTP connections of a forwarder with ``--http``; beyond it the one with the oldest
request is closed. The use is a scraper or two."""
