"""Every bound of fastjournal in one place, each with its reason.

Sizes are in bytes, times in microseconds, unless the name says otherwise.
"""

from __future__ import annotations

# --- protocol -----------------------------------------------------------------------------------

KEY_BYTES_MAX = 4096
"""A key or URI. Long enough for any URL that browsers and servers accept in practice."""

REASON_BYTES_MAX = 4096
"""Why an entry is buried: the last lines of a program's output, and the envelope of an entry with
it stays under workq's 1 MiB."""

PRIORITY_MAX = 255
"""Priorities are 0 (first) to 255 (last): one byte of the order key."""

PRIORITY_DEFAULT = 128
"""The middle: there is room on both sides. It is priority 0 in workq's terms."""

INSTANT_MAX = 2**64 - 1
"""Instants and durations are u64 on the wire."""

IDENTIFIER_MAX = 0xFFFF
"""Request identifiers are u16, so at most 65,536 requests of a connection can be told apart."""

PAIRS_MAX = 0xFFFF
"""Pairs in one reply: the count field is u16."""

VALUE_BYTES_MAX = 1_000_000
"""Default of max-value: with its envelope such a value stays under workq's 1 MiB payload."""

VALUE_BYTES_LIMIT = 2**32 - 2
"""What max-value can be at most: the size on the wire is u32 and counts the type byte."""

REPLY_BYTES_MAX = 4 * 1024 * 1024
"""Default of max-reply: large enough for 64 jobs of 64 KiB, small enough to send in one piece."""

ERROR_SENTENCE_BYTES_MAX = 1024
"""An error text: a code and one sentence."""

# --- daemon -------------------------------------------------------------------------------------

CLOCK_SKEW_US_MAX = 60_000_000
"""Default of max-clock-skew: hosts that run NTP are far closer than a minute."""

POSTPONE_US_MAX = 3600 * 1_000_000
"""Default of max-postpone: a resource that changes all the time is worked on once an hour. A longer
delay is none of the short ones that it bounds."""

LEASE_US_DEFAULT = 24 * 3600 * 1_000_000
"""Default of default-lease: a day, for work whose length nobody stated."""

TOMBSTONE_TTL_US = 3600 * 1_000_000
"""Default of tombstone-ttl: longer than any sane forwarder backlog is resent out of order."""

TOMBSTONES_MAX = 1_000_000
"""Default of tombstones-max: about 400 MB of memory for keys of a usual length."""

TOMBSTONES_BYTES_MAX = 512 * 1024 * 1024
"""Default of tombstones-bytes-max: so many of usual keys, and 120,000 of the longest."""

TOMBSTONE_BYTES = 320
"""Of a tombstone in memory, besides its key."""

CONNECTIONS_MAX = 10_000
"""Default of max-connections: under the usual limit of open files of a service."""

INFLIGHT_BYTES_MAX = 256 * 1024 * 1024
"""Default of max-inflight, what connections hold together before memory is scarce: 64 of the
largest replies, or 256 of the largest values on their way."""

SCARCE_BYTES = 4096
"""While memory is scarce: what a session reads at once, gathers of replies, and the largest value
that a reply has. With its decoded requests a connection then holds less than 64 KiB, 640 MB for the
default of max-connections."""

SCARCE_PARTIAL_BYTES = 64 * 1024
"""While memory is scarce: of a request that is not whole. Usual requests go on."""

SLOW_READER_SECONDS = 5.0
"""While memory is scarce: who has taken nothing for so long is closed. A reader that is only slow
takes 64 KiB in that time."""

SEND_BYTES_MAX = 64 * 1024
"""Sent in one piece: a client that takes so much is not standing still."""

REQUEST_OBJECT_BYTES = 256
"""What a decoded request takes in memory beside its key and value."""

REQUEST_BYTES_PER_SECOND = 64 * 1024
"""Beyond request-timeout, a large value may take so long as it takes on a slow line."""

REQUEST_SECONDS_MAX = 60
"""Default of request-timeout: who sends half a request has no reason to wait with the rest."""

SEND_SECONDS_MAX = 300
"""Default of send-timeout: a client that is stopped in a debugger for a while is not lost."""

IDLE_SECONDS_MAX = 24 * 3600
"""Default of idle-timeout: default-lease, after which a silent worker has lost its work anyway."""

RECEIVE_BYTES_MAX = 64 * 1024
"""One read of a socket: some 300 usual requests, three milliseconds of work for one client."""

NEXT_ENTRIES_MAX = 500
"""Entries of one NEXT, whatever its count: about 5 ms of work, so nobody else waits longer."""

ADVANCE_WORK_MAX = 1000
"""Work of one go at entries whose delay, lease or life ended, 100 of them; where a million end at
midnight, requests are served in between."""

KICK_ENTRIES_MAX = 250
"""Entries of one KICK of a domain, whatever its count: each is written anew, 20 us of work."""

KICK_BYTES_MAX = 1024 * 1024
"""Keys and values of one KICK of a domain: they are written anew, in one piece and 4 ms."""

KICK_LOOKS_MAX = 5000
"""Buried entries that one KICK of a domain looks at, with those that others have locked: 3 ms."""

PAUSED_DOMAINS_MAX = 100_000
"""Domains that are paused at a time, with entries or without."""

PAUSED_BYTES_MAX = 64 * 1024 * 1024
"""What they take in memory: so many of usual names, and 14,000 of the longest."""

PAUSE_BYTES = 540
"""Of a paused domain in memory, besides its name."""

SERVED_MAX = 100
"""Waiting requests that are answered in one go, and those that have waited long enough: where a
hundred thousand wait for one domain, others are served in between."""

SERVE_WORK_MAX = 2000
"""Work of one go at waiting requests: with it done none is begun. One may take 500 entries."""

READY_DOMAINS_MAX = 500
"""Domains in which something became ready that are looked at in one go for those who wait."""

OLDEST_DUE_LOOKS_MAX = 1000
"""Entries that a STATS of the daemon compares for the age of the oldest, one for each domain and
priority that has something due. Under 5 ms of work; /metrics takes its time and looks at all."""

EXPRESSION_BYTES_MAX = 4096
"""A regular expression: as long as a key, which it is meant to match."""

EXPRESSION_INSTRUCTIONS_MAX = 3000
"""The program of a regular expression: common ones for URLs have up to 2,900, where they count
characters. One match takes up to 10 ns for each instruction and byte of the key: what may take over
a millisecond is matched in a thread."""

EXPRESSION_CLASSES_MAX = 32
"""Unicode classes (``\\p``) of a regular expression: each takes 70 us to compile."""

MATCHED_KEYS_MAX = 200
"""Keys of a scan that a thread holds against an expression in one go."""

MATCHED_WORK_MAX = 10_000_000
"""Instructions times bytes of these: under 100 ms, usually under one."""

EXPRESSION_MEMORY_BYTES = 256 * 1024
"""What RE2 may use for one expression; the last 128 are kept, so 32 MiB for all."""

SCAN_STEP_WORK = 400
"""What a scan does in one go, in units of about a microsecond at the worst."""

READ_AHEAD = 64
"""Requests behind one whose value is read from the disk: what they need is read with it."""

FETCHES_MAX = 4
"""Requests whose values are read from the disk at a time, each as much as one reply holds."""

SCANS_MAX = 16
"""Scans that gather a reply at a time; others wait to begin. A reply of 65,535 small pairs with
metadata takes 15 MB while it is made."""

MERGED_KEYS = 100
"""Keys that are merged into the index in one go, up to 5 us each."""

PENDING_KEYS_MAX = 50_000
"""Keys that wait to be merged, while there is no idle moment. A set that grows beyond is rehashed
at once, which would take over 2 ms."""

RELIEVED_KEYS = 1000
"""Of these so many are merged after the requests of a session: more than its share adds."""

SCAN_LEASES_MAX = 1000
"""Entries that one GET leases: all in one go, as NEXT does."""

REPLIES_BYTES_MAX = 1024 * 1024
"""Replies of one connection that are gathered before they are sent: a read may hold thousands of
requests, each with a reply of megabytes."""

GIVEN_BACK_MAX = 100
"""Entries that are given back in one go, where their replies were never sent: a millisecond; a
connection may have been handed out thousands in replies that it did not read."""

LINKS_PER_ENTRY_MAX = 64
"""Further keys of one entry by LINK: each is a place in the index of keys."""

LINK_BYTES_MAX = 32 * 1024
"""All of these together: with a value of VALUE_BYTES_MAX an envelope stays under workq's 1 MiB."""

LOCKS_PER_CONNECTION_MAX = 1000
"""Entries that one connection has locked: that all of them end with it takes under 10 ms."""

LOCKS_MAX = 200_000
"""Entries that all connections have locked: 56 MB."""

LOCK_US_DEFAULT = 60_000_000
"""A LOCK that states no time: for a change made by a program, far too long for one that hangs."""

WAITS_PER_CONNECTION_MAX = 64
"""NEXTs that wait on one connection: a client that stops reading holds the reply of each in memory.
A worker with more tasks opens more connections."""

WAITS_MAX = 100_000
"""NEXTs that wait on all connections."""

WAITS_BYTES_MAX = 128 * 1024 * 1024
"""What they take in memory: so many for domains of usual names, and 27,000 of the longest."""

SUBSCRIPTIONS_PER_CONNECTION_MAX = 1000
"""LISTENs of one connection: a few for each thing that a program shows or caches."""

SUBSCRIPTIONS_MAX = 100_000
"""LISTENs of all connections: at most 100,000 looks for each key that changes."""

MATCH_STEPS_MAX = 500
"""Steps of matching in one go: about a millisecond of work, but for an expression that alone takes
longer."""

CHANGES_BYTES_MAX = 16 * 1024 * 1024
"""Changed keys that wait to be looked up in the indexes of subscriptions, some 50,000: beyond it
who has most of that work done, and more than its share, loses its subscriptions."""

CHANGES_STOP_BYTES = 4 * CHANGES_BYTES_MAX
"""From here on no more requests are read until there are fewer. Subscriptions do not bring it so
far, only more changes in one round of the event loop than can be looked up in it."""

MATCH_WORK_MAX = 100_000
"""Steps of matching for one connection while changes wait without a break, 0.1 to 0.2 s of work;
beyond it"""

MATCH_WORK_A_CHANGE = 16
"""so many for each change that was matched meanwhile are its share: who listens to everything, even
by several ranges that overlap, has one for each."""

SEARCH_QUEUE_BYTES_PER_CONNECTION_MAX = 4 * 1024 * 1024
"""Keys that wait for the expressions of one connection, some 10,000; then these end."""

SEARCH_QUEUE_BYTES_MAX = 64 * 1024 * 1024
"""The same for all connections; then those of the one that has most."""

SEARCH_QUEUE_TURN_STEPS = 100
"""Of matching expressions of one connection, before it is the turn of the next."""

EXPRESSION_SET_INSTRUCTIONS = 200
"""Of expressions that are matched together: so a match takes no longer than that of one may."""

LONG_MATCH_WORK = 100_000
"""Instructions times bytes of a key, about a millisecond at the worst: a match of more goes to a
thread."""

LONG_MATCHES = 8
"""Of one key with the expressions of one connection, before it is the turn of the next."""

INSTRUCTION_MEMORY_BYTES = 512
"""What RE2 may use for expressions that are listened to, for each instruction: twice what it needs
at the least for a large one."""

SET_MEMORY_BYTES_MIN = 16 * 1024
"""The same for a small one."""

SUBSCRIPTIONS_BYTES_PER_CONNECTION_MAX = 24 * 1024 * 1024
"""Memory for the LISTENs of one connection, compiled expressions included: 1,000 usual ones."""

SUBSCRIPTIONS_BYTES_MAX = 256 * 1024 * 1024
"""The same for all connections; equal expressions count once. Enough for 100,000 usual keys or
ranges."""

NEWS_BYTES_PER_CONNECTION_MAX = 16 * 1024 * 1024
"""Keys that changed and of which a client was not told, because it does not read: some 50,000. Then
the connection ends, for no change may be lost unnoticed."""

NEWS_AHEAD = 16
"""Pieces of news whose values are read from the disk together, where they are there only."""

NEWS_BYTES_MAX = 256 * 1024 * 1024
"""The same for all connections; then the one that has most ends."""

NEWS_TURN_BYTES = 8 * 1024
"""Notifications sent to a connection in one piece, a millisecond of work: what changes meanwhile
is folded."""

NEWS_TURNS_A_ROUND = 4
"""Connections that are sent such a piece in one round of the event loop, where many listen to the
same: others wait some 4 ms at most."""

WOKEN_A_ROUND = 25
"""Connections that begin to be told in one round of the event loop, 2 ms of work."""

TOLD_EARLY_BYTES_MAX = 4 * 1024 * 1024
"""Keys of which is remembered that they were told before they were matched, some 10,000. Were there
more, some would be told twice."""

REFUSALS_MAX = 64
"""Connections over max-connections that are told so at a time; more are just closed."""

AUTH_TOKEN_BYTES_MAX = 1024
"""A token of AUTH: many times what a random one needs, and cheap to hash."""

AUTH_TOKENS_MAX = 1000
"""Tokens that a daemon knows: every AUTH is compared with all of them, in 0.2 ms."""

AUTH_FILE_BYTES_MAX = 1024 * 1024
"""The file of these tokens: a kilobyte of rights and prefixes each."""

AUTH_SECONDS = 10
"""Default of auth-timeout: a client sends AUTH with its first packet."""

AUTH_FAILURES_MAX = 3
"""Wrong tokens on one connection; then it is closed."""

AUTH_FAILURE_SECONDS = 1.0
"""So long the answer to a wrong token is held back: only whoever sent it waits."""

HANDSHAKES_MAX = 256
"""TLS handshakes at a time; for one more, one that is not done makes room: each holds some 50 KB
and costs a millisecond."""

HANDSHAKES_PER_ORIGIN_MAX = 128
"""Of them from one address, an IPv6 network of 64 bits being one: as many as a host of workers that
starts begins within a round trip, and half of all, so that none has the house to itself."""

HANDSHAKE_SECONDS_MAX = 10.0
"""From connecting to the end of the TLS handshake."""

HANDSHAKE_STEPS_A_TURN = 3
"""Steps of handshakes in one turn of the event loop, for all addresses: about a millisecond each,
with an RSA key of 2,048 bits."""

HTTP_CONNECTIONS_MAX = 32
"""HTTP connections at once; for one more, one that asked longest ago makes room: a few scrapers and
health checks are the use."""

HTTP_HEAD_BYTES_MAX = 16 * 1024
"""Request line and header fields of an HTTP request: what browsers and proxies send fits."""

HTTP_SECONDS_MAX = 10.0
"""How long an HTTP client may take to send a request, and to take the reply."""

METRICS_DOMAINS_MAX = 20
"""Domains with figures of their own in the metrics: a series each in somebody's database."""

FILES_RESERVED = 64 + REFUSALS_MAX + HTTP_CONNECTIONS_MAX
"""Open files that are not for connections: listeners, segments, snapshots, refusals, HTTP. With TLS
the handshakes come on top."""

MIN_FREE_BYTES = 64 * 1024 * 1024
"""Default of min-free-bytes: one segment; below it the daemon is read-only."""

# --- work ---------------------------------------------------------------------------------------
# One currency for all that holds the event loop: units of about a microsecond, counted where the
# work is done and on the safe side. tests/unit/test_engine_work.py holds executed lines against it.

REQUEST_WORK = 10
"""Any request, with its reply."""

BATCH_WORK = 40
"""What a session received in one go, or that its client has gone, whatever is in it: its task is
woken some times, and the system is asked to receive and to send."""

ENTRY_WORK = 10
"""An entry that is leased, taken away, kicked, or whose delay, lease, lock or life ends."""

DOMAIN_WORK = 2
"""A domain that is looked at for those who wait."""

COMPILE_WORK = 100
"""A regular expression that is compiled,"""

COMPILED_BYTE_WORK = 2
"""and each byte of it: 4,096 of them may take 7 ms."""

MERGE_WORK = 4
"""A key that is merged into the index of keys."""

DUE_LOOK_WORK = 3
"""An entry that is compared for the age of the oldest."""

KICK_LOOKS_A_UNIT = 2
"""Buried entries that a KICK looks at."""

TOKENS_A_UNIT = 5
"""Tokens that an AUTH is compared with."""

LEASES_A_UNIT = 10
"""Entries of one token that are listed anew, where one of them is renamed."""

UNLOCK_WORK = 5
"""A lock that ends with its connection."""

HANG_UP_LOOK_WORK = 5
"""A look whether the client of a NEXT that waits is gone: some system calls."""

WAIT_END_WORK = 10
"""A NEXT that waits no more, because its client is gone."""

READ_BYTES_A_UNIT = 16
"""Of requests that are not decoded yet: how much work they will be is not known before."""

WRITTEN_BYTES_A_UNIT = 512
"""Of values that are put into records: packed, summed and copied."""

WRITTEN_BYTES_MIN = 4096
"""Of a value of a SET that counts as more than its request."""

COPIED_BYTES_A_UNIT = 8192
"""Of values that are copied: cut, filled up, or put into replies."""

ASIDE_WORK_MAX = 1000
"""What a NEXT does beside handing out: records written anew, links and keys taken away."""

CALL_WORK_MAX = 10_000
"""What one call of the engine does at the most: a part of what time has brought, and a NEXT of 500
entries or a KICK of some megabytes. It is counted on the safe side: 3 to 5 ms are measured."""

TURN_WORK = 2500
"""Of one turn of the event loop, from one look at the sockets to the next: with it done, no
client's requests are begun in it. What the last call does beyond is taken off the next turns."""

CREDIT_WORK = 500
"""How far a client that was idle is ahead of those that are always busy: what it asks for up to
there comes before what they ask for."""

# --- clients ------------------------------------------------------------------------------------

CLIENT_IN_FLIGHT_MAX = 8192
"""Requests of one client connection without a reply: far under the 65,535 identifiers."""

CLIENT_UNSENT_BYTES_MAX = 256 * 1024
"""Encoded requests that wait for the socket; then the caller waits instead of the memory."""

CLIENT_REPLY_BYTES_MAX = 64 * 1024 * 1024
"""A client's default reply_bytes_max: many times max-reply, for a single large pair goes alone."""

SOCKET_WAIT_S_MAX = 1_000_000.0
"""Seconds of one wait for a socket: poll() takes 24.8 days at most, so longer waits are several."""

CONNECT_TRY_S_MIN = 1.0
"""Seconds that a try to connect has where less is left, so that it may succeed."""

CLIENT_REPEATS_MAX = 4
"""How often a request is sent again on a new connection: one that kills connections must end."""

TIMESTAMP_AHEAD_US_MAX = CLOCK_SKEW_US_MAX
"""So far write timestamps may be ahead of the clock, after it stepped back: the daemon takes them,
and newest wins. It refuses those further ahead, so there is nothing that a smaller one loses to."""

TIMESTAMP_SLICE_US = 16_000_000
"""Of each slice of time the last write timestamp is kept: well under what daemons take as skew, for
in a slice that is gone through again timestamps begin behind that."""

TIMESTAMP_SLICES_MAX = 8192
"""Such slices: 36 hours of constant writing, and less than 1 MB."""

LISTENER_KEYS_MAX = 10_000
"""Changed keys that wait for a listener; beyond it they are forgotten, and it is told so."""

LISTENER_BYTES_MAX = 64 * 1024 * 1024
"""The bytes of their values."""

LISTENER_PING_S = 30.0
"""A listener that hears nothing for that long asks whether the daemon is still there."""

JOBS_WAIT_US_MAX = 30_000_000
"""One wait of a job loop for work: then it asks again, and so learns of a dead connection."""

JOBS_WAIT_BESIDE_WORK_US_MIN = 1_000_000
"""The shortest wait of a worker for more work while some of it runs: a shorter one would only make
traffic."""

LEASE_RENEWAL_PAUSE_S_MIN = 0.1
"""Pause before a renewal that failed is tried again, just before the lease ends."""

FAILED_JOBS_REMEMBERED_MAX = 100_000
"""Jobs whose failures a client remembers, in a few MB; the longest untouched goes first."""

JOB_LEASE_US = 60_000_000
"""Default lease of a job whose lease is extended while it runs: how late a killed worker shows."""

SYNC_JOB_LEASE_US = 600_000_000
"""The same where nobody extends it: longer than most work takes."""

JOB_LEASE_US_MIN = 1_000_000
"""A lease is extended three times in its length: a shorter one ends before a slow reply comes."""

CLIENT_LAST_WORDS_S = 5.0
"""Seconds for a cancelled task, or a client that is closed, to give back what it holds."""

CLIENT_SNAPSHOT_S = 3600.0
"""Seconds that a SNAPSHOT may take beyond the usual silence: it may remove many large files of old
ones, and what was sent after it on its connection is answered after it."""

SCAN_PAGE_ENTRIES = 1000
"""Entries that the iterators over ranges ask for at a time: a round trip costs little for each,
and what the daemon has to look at is served between other clients."""

IMPORT_BATCH_ITEMS = 500
"""Items of an import on their way at a time: a round trip and a sync cost little for each."""

IMPORT_BATCH_BYTES = VALUE_BYTES_MAX
"""The bytes of their values. So what is over the usual max-value goes alone: the daemon ends the
connection of whoever sends it."""

# --- command log --------------------------------------------------------------------------------

COLD_BYTES_MIN = 64
"""Of a value that may leave memory: less would not be worth it."""

SEGMENT_BYTES_MAX = 64 * 1024 * 1024
"""Default of cmdlog-seg-size: workq's default; a Spark partition of a comfortable size."""

LOG_PAYLOAD_BYTES_MAX = 1024 * 1024
"""workq refuses a larger payload or result."""

READ_LOCK_PATIENCE_S = 10.0
"""How long a reader of a log waits for a segment that is being replaced: that takes an instant."""

SIFTED_BYTES_MAX = 64 * 1024
"""Of a segment that cleaning looks at before others have their turn: under 2 ms of work."""

SIFTED_RECORDS_MAX = 500
"""Records that cleaning puts together, or tells entries the places of, before others have their
turn: under 2 ms of work."""

RESTATED_ENTRIES_MAX = 100
"""Entries that cleaning appends anew before it waits until they are durable: under 2 ms of work."""

WRITTEN_BYTES_MAX = 1 << 20
"""Of a cleaned segment that are written before they are synced: 1 to 2 ms for which the syncs of
the log, on the same disk, have to wait."""

SIFTED_WAITS_MAX = 16
"""Segments of which is remembered that a segment has to wait for them until its removals may go."""

REMNANTS_MAX = 16
"""Small files that wait for others to be cleaned; of more, these are cleaned, little as they may
have that is dead."""

LOOK_AGAIN_US = 3600 * 1_000_000
"""A segment that could not be made much smaller, and in which nothing ends by itself, is looked at
again after so long."""

# --- spool --------------------------------------------------------------------------------------

SLOT_SECONDS = 3600
"""Default length of a spool slot: one file an hour."""

SPOOL_BYTES_MAX = 16 * 1024**3
"""Default of spool_bytes_max: beyond it the writer raises SpoolFull instead of filling the disk."""

SPOOL_FRAME_BYTES_MAX = 64 * 1024 * 1024
"""One spooled frame; a larger size field is damage, not a request."""

MOVED_US_MAX = 1_000_000
"""So long a writer appends to its slot without a look at whether the path still leads to it. A
deleted slot shows at each append; one that was moved away takes records for so long at the most."""

OPEN_SLOTS_MAX = 256
"""Slots that a forwarder has open: a backlog of months has thousands of files, and a process may
open 1,024."""

STRETCHES_MAX = 16 * 1024
"""Places of delayed records that a forwarder remembers one by one, and as many of suspects, in some
300 bytes each; with more, those of each slot become one. Frames are not kept, so this bounds how
exactly each record is tried again when its own pause is over, and nothing else."""

UNERASED_MAX = 1024
"""Delivered records that a forwarder could not erase, and remembers so as not to send them again;
with more, it ends: this disk takes nothing."""

RESCAN_US = 5_000_000
"""The longest time between two looks of a forwarder at the spool, whatever wakes and whatever does
not; also how long it leaves out a slot that fails, and ``dead/`` when that takes nothing."""

SUSPECT_LOSSES = 2
"""Connections that ended with a record on its way until it is tried alone: once may be chance."""

SUSPECT_GAP_US = 1_000_000
"""So long after a suspect ended another connection no suspect is tried: however many there are, the
others lose one connection a second."""

SKIP_AFTER = 4
"""Suspects in a row after which more and more untried records are passed over in search of a good
one."""

SKIP_MAX = 64 * 1024
"""Records passed over in one go: so many are found whole in a second or two."""

REFUSING_US_MAX = 30_000_000
"""A daemon that refuses everything for so long is left for the next of the list."""

RETRY_PAUSE_US_MAX = 30_000_000
"""The longest pause between two tries of the forwarder."""
