"""GET of a range, an expression or a cursor: a scan, which is carried out in steps.

    start -> Scan.step, again and again: merge the key index -> look at keys -> lease -> encode

A step does bounded work, counted, not measured: the same requests give the same steps. Between two
steps anything may come, go and change. What a step finds is returned as it stood then; what is to
be leased is looked at again in the step that leases it.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Iterator
from itertools import islice

from fastjournal.cmdlog.format import workq
from fastjournal.limits import (
    MATCHED_KEYS_MAX,
    MATCHED_WORK_MAX,
    MERGE_WORK,
    PAIRS_MAX,
    REQUEST_WORK,
    SCAN_LEASES_MAX,
    SCAN_STEP_WORK,
    WRITTEN_BYTES_A_UNIT,
)
from fastjournal.protocol import ErrorCode, Pair, Query, Reply, ReplyEncoder, Request
from fastjournald.engine.context import Context
from fastjournald.engine.handlers.arguments import (
    DATA,
    LISTEN,
    META,
    READ_ONLY,
    SCARCE,
    TWO_KEYS,
    UPDATE_TIMEOUT,
    WORKED_ON,
)
from fastjournald.engine.handlers.get import (
    META_BYTES,
    PAIR_BYTES,
    REPLY_BYTES,
    get_key,
    is_missing,
    keep_expiry,
    move_expiry,
    pair_of,
    why_unreadable,
)
from fastjournald.engine.handlers.scan.cursor import CURSOR_BYTES, Cursor, encode_cursor
from fastjournald.engine.handlers.scan.plan import Plan, plan_of
from fastjournald.engine.key_filter import LongMatches, Selection
from fastjournald.engine.undelivered import Handout
from fastjournald.tables.entry import Entry, Place
from fastjournald.tables.value_cache import Missing

# What a step counts, in units of about a microsecond at the worst.
_KEY_WORK = 1
_MATCH_WORK = 2
_BYTE_INSTRUCTIONS = 100
"""So many bytes of a key times instructions of an expression are one unit."""
_PAIR_WORK = 5
_EXPIRY_WORK = 20
_ENCODE_WORK = 2
_LEASE_WORK = 20
_AHEAD_WORK = 10


def get(
    context: Context, session: Hashable, request: Request, now: int
) -> str | Reply | Missing | Scan:
    """Return the pair under a key; for many keys a scan, which is carried out in steps."""
    listens = request.flags & LISTEN
    if context.subscriptions and not listens:
        context.subscriptions.end(session, request.identifier)
    if request.query == Query.KEY:
        return get_key(context, session, request, now)
    plan = plan_of(context, request)
    if isinstance(plan, str):
        return plan
    scan = Scan(context, session, request, plan)
    if listens:
        refused = context.subscriptions.refuses(session, request.identifier, plan.selection)
        if refused:
            return refused
    if request.timeout is not None and context.read_only:
        return READ_ONLY
    if listens:
        # from the beginning: what changes while it goes on is told after its reply
        context.subscriptions.begin(session, request.identifier, plan.selection)
    return scan


class Scan:
    """A GET of many keys that is being carried out.

    Args:
        context: What it looks through.
        session: Whoever asked.
        request: The GET.
        plan: What it is about.
    """

    __slots__ = (
        "_batch",
        "_chosen",
        "_encoder",
        "_key_bytes_max",
        "_matched",
        "_next_key",
        "_number_max",
        "_pairs",
        "_plan",
        "_room",
        "_searched",
        "_seen",
        "_taken",
        "_token",
        "_value_bytes_max",
        "_work_left",
        "leased",
        "leases",
        "request",
        "session",
    )

    def __init__(self, context: Context, session: Hashable, request: Request, plan: Plan) -> None:
        self.session = session
        self.request = request
        self.leases = request.timeout is not None and not request.flags & UPDATE_TIMEOUT
        self._plan = plan
        number_max = SCAN_LEASES_MAX if self.leases else PAIRS_MAX
        self._number_max = min(plan.count or number_max, number_max)
        self._room = context.reply_bytes_max - self._reply_bytes
        self._batch = context.store.keys.sorted_keys().mark()
        self._next_key: bytes | None = plan.selection.start
        """Where the search goes on; in the end where the next reply begins, None: nowhere."""
        self._searched = False
        self._pairs: list[Pair] = []
        self._chosen: list[tuple[bytes, Entry]] = []
        """What is to be leased, and the key under which it was found first."""
        self.leased: list[Handout] = []
        """What the reply will hand out."""
        self._token = 0
        """Of all that is leased; 0: nothing yet."""
        self._seen: set[int] = set()
        """Addresses of the chosen entries: each is leased once."""
        self._taken: dict[bytes, int] = {}
        """Entries taken of limited domains, that are not leased so far."""
        self._key_bytes_max = 0
        self._value_bytes_max = 0
        self._encoder: ReplyEncoder | None = None
        self._matched: dict[bytes, bool] = {}
        """Which of the next keys match, as far as a thread has found that out."""
        self._work_left = 0
        """Of a step that searches."""

    @property
    def _reply_bytes(self) -> int:
        """The reply without its pairs."""
        return REPLY_BYTES + CURSOR_BYTES + len(self._plan.text)

    @property
    def selection(self) -> Selection:
        """The keys that it is about."""
        return self._plan.selection

    def step(self, context: Context, now: int) -> str | bytes | Missing | LongMatches | None:
        """Do a step; return the error or the reply if it was the last one, or what it needs."""
        if context.grants is not None:
            # the token may have lost its rights meanwhile
            why_not = context.grants.check(context.store, self.session, self.request)
            if why_not:
                return why_not
        store = context.store
        index = store.keys.sorted_keys()
        if not index.merged(self._batch):
            store.work += MERGE_WORK * index.merge(SCAN_STEP_WORK // MERGE_WORK)
        elif not self._searched:
            before = self._work_left = SCAN_STEP_WORK
            outcome = self._search(context, now)
            store.work += before - self._work_left
            return outcome
        elif self._chosen:
            return self._lease(context, now)
        elif self._encoder is None:
            reply = Reply(flags=TWO_KEYS, identifier=self.request.identifier, timestamp=now)
            if self._token:
                reply.flags |= WORKED_ON
                reply.timeout = self._token
            reply.pairs = self._pairs
            reply.cursor = self._cursor()
            self._encoder = ReplyEncoder(reply, self._key_bytes_max, self._value_bytes_max)
        else:
            number = min(len(self._pairs), SCAN_STEP_WORK // _ENCODE_WORK)
            store.work += REQUEST_WORK + _ENCODE_WORK * number
            return self._encoder.encode(SCAN_STEP_WORK // _ENCODE_WORK)
        return None

    # --- looking for keys -----------------------------------------------------------------------

    def _search(self, context: Context, now: int) -> str | Missing | LongMatches | None:
        """Look at some more keys, until there is no more, or one too many for this reply.

        Returns:
            An error, where memory is scarce and the first pair takes too much of it, or a value
            cannot be read; values to be read, where the search has come to one on disk only; keys
            to be matched in a thread.
        """
        if not self._pairs:
            self._keep_to_ration(context)
        store = context.store
        selection = self._plan.selection
        instructions = selection.instructions
        start = self._next_key
        assert start is not None
        for key in store.keys.sorted_keys().between(start, selection.stop):
            if self._work_left <= 0:
                self._next_key = key
                return None
            self._work_left -= _KEY_WORK
            entry = store.find(key)
            if entry is None:
                continue
            if instructions:
                matched = self._matched.get(key)
                if matched is None:
                    if selection.takes_long(key):
                        self._next_key = key
                        return self._long_matches(context)
                    self._work_left -= _MATCH_WORK + len(key) * instructions // _BYTE_INSTRUCTIONS
                    matched = selection.matches_inside(key)
                if not matched:
                    continue
            if self._left_out(context, entry, now):
                continue
            if self.leases:
                if id(entry) in self._seen or not self._takes_room(entry):
                    continue
                fits = len(self._chosen) < self._number_max
            elif is_missing(entry, self.request.flags, leases=False):
                self._next_key = key
                return self._missing(context, entry, self._ahead(context, now))
            elif self._pairs:
                fits = len(self._pairs) < self._number_max and self._fits(entry, key, first=False)
            elif self._is_too_large(context, entry):
                return SCARCE
            else:
                fits = self._fits(entry, key, first=True)
            if not fits:
                self._next_key = key
                self._searched = True
                return None
            self._work_left -= _PAIR_WORK
            if self.leases:
                self._chosen.append((key, entry))
                self._seen.add(id(entry))
                continue
            store.access(entry, now)
            if move_expiry(context, entry, self.request, now):
                self._work_left -= _EXPIRY_WORK
                keep_expiry(context, entry, self.request, now)
            self._add(context, entry, key, now)
        self._next_key = None
        self._searched = True
        return None

    def _long_matches(self, context: Context) -> LongMatches:
        """Return the next keys, to be matched in a thread before the search goes on."""
        selection = self._plan.selection
        assert self._next_key is not None
        keys: list[bytes] = []
        room = MATCHED_WORK_MAX
        for key in context.store.keys.sorted_keys().between(self._next_key, selection.stop):
            keys.append(key)
            room -= selection.instructions * len(key)
            if room < 0 or len(keys) == MATCHED_KEYS_MAX:
                break
        self._work_left -= _KEY_WORK * len(keys)
        matches = LongMatches(selection, keys)
        self._matched = matches.found
        return matches

    def _keep_to_ration(self, context: Context) -> None:
        """Memory may have become scarce while the scan waited."""
        self._room = min(self._room, context.reply_bytes_max - self._reply_bytes)

    def _is_too_large(self, context: Context, entry: Entry) -> bool:
        """Whether memory is scarce and the value large."""
        return bool(self.request.flags & DATA) and len(entry.value) > context.value_bytes_ration

    def _left_out(self, context: Context, entry: Entry, now: int) -> bool:
        """Whether rights or the flags of the request leave an entry out, as it stands now."""
        if context.grants is not None and not context.grants.may_see(self.session, entry):
            return True
        flags = self.request.flags
        if self.request.timeout is not None and context.store.locked_to(entry, self.session, now):
            return True
        if (self.leases or flags & WORKED_ON) and entry.place == Place.LEASED:
            return True
        return self.leases and (
            # no entry gets the token that it had before
            0 < self._token == entry.extra.token_before
            or entry.place == Place.BURIED
            or (entry.uri is not None and entry.uri in context.store.running)
        )

    def _takes_room(self, entry: Entry) -> bool:
        """Whether the limit of its domain allows one more hand-out, and if so take that."""
        domain = entry.domain
        if domain.limit is None:
            return True
        taken = self._taken.get(domain.name, 0)
        if taken >= domain.allowance():
            return False
        self._taken[domain.name] = taken + 1
        return True

    def _fits(self, entry: Entry, key: bytes, *, first: bool) -> bool:
        """Whether a pair fits the reply, and if so take the room for it; the first one does.

        Behind it there must be room for a cursor with its key.
        """
        flags = self.request.flags
        other = len(entry.uri or b"") if key == entry.key else len(entry.key)
        size = len(key) + other + PAIR_BYTES
        if flags & DATA:
            size += len(entry.value)
        if flags & META:
            size += META_BYTES
        if size + len(key) >= self._room and not first:
            return False
        self._room -= size
        return True

    def _missing(self, context: Context, entry: Entry, ahead: Iterable[Entry]) -> str | Missing:
        """Ask for the value of an entry, and for those that are needed soon; or say why not."""
        why_not = why_unreadable(context.store, entry)
        if why_not:
            return f"{ErrorCode.NOT_READABLE} {why_not}"
        leases = self.leases
        # one entry may have several keys
        missing = {entry.key: entry}
        room = self._room - len(entry.value)
        for other in ahead:
            room -= len(other.value)
            if room < 0:
                break
            if is_missing(other, self.request.flags, leases=leases):
                missing[other.key] = other
        return Missing(list(missing.values()))

    def _ahead(self, context: Context, now: int) -> Iterator[Entry]:
        """Yield entries that the search will come to, as it looks now."""
        selection, store = self._plan.selection, context.store
        assert self._next_key is not None
        keys = store.keys.sorted_keys().between(self._next_key, selection.stop)
        for key in islice(keys, SCAN_STEP_WORK // _AHEAD_WORK):
            if selection.takes_long(key):
                return
            entry = store.find(key)
            if entry is None or (selection.instructions and not selection.matches_inside(key)):
                continue
            if not self._left_out(context, entry, now):
                yield entry

    def _cursor(self) -> bytes | None:
        """Return the cursor, if there is more to come."""
        plan, next_key = self._plan, self._next_key
        if next_key is None:
            return None
        if self._pairs:
            # what is between was left out, and is looked at again: it may be another matter then
            next_key = self._pairs[-1].key + b"\0"
        return encode_cursor(Cursor(plan.kind, plan.count, next_key, plan.text))

    def _add(self, context: Context, entry: Entry, key: bytes, now: int) -> None:
        pair = pair_of(context.store, entry, key, self.request.flags, now)
        self._pairs.append(pair)
        self._key_bytes_max = max(self._key_bytes_max, len(key), len(pair.second_key))
        self._value_bytes_max = max(self._value_bytes_max, len(pair.value))

    # --- leasing --------------------------------------------------------------------------------

    def _lease(self, context: Context, now: int) -> str | Missing | None:
        """Lease some of what was chosen, as far as it may be leased still, and fits the reply.

        Returns:
            An error, where nothing may be leased now, the first pair takes too much memory, or a
            value cannot be read; values to be read, where one that is to be leased is on disk only.
        """
        self._keep_to_ration(context)
        store = context.store
        number = SCAN_STEP_WORK // _LEASE_WORK
        chosen, self._chosen = self._chosen[:number], self._chosen[number:]
        store.work += _LEASE_WORK * len(chosen)
        if not self._token:
            if context.read_only:
                return READ_ONLY
            self._seen.clear()
        self._taken.clear()
        leased: list[tuple[bytes, Entry]] = []
        work_over = store.work + SCAN_STEP_WORK
        for at, (key, _) in enumerate(chosen):
            entry = store.find(key)
            if entry is None or id(entry) in self._seen or self._left_out(context, entry, now):
                continue
            if not self._takes_room(entry):
                continue
            if is_missing(entry, self.request.flags, leases=True):
                self._chosen = chosen[at:] + self._chosen
                if leased:
                    break
                ahead = (other for _, other in chosen[at:])
                return self._missing(context, entry, ahead)
            first = not (leased or self._pairs)
            if first and self._is_too_large(context, entry):
                return SCARCE
            if not self._fits(entry, key, first=first):
                self._next_key = key
                self._chosen.clear()
                break
            self._seen.add(id(entry))
            leased.append((key, entry))
            if entry.extra.starts >= workq.ATTEMPTS_MAX:
                # it becomes a new job, for workq
                store.work += entry.full_bytes() // WRITTEN_BYTES_A_UNIT
                if store.work > work_over:
                    self._chosen = chosen[at + 1 :] + self._chosen
                    break
        if leased:
            self._lease_all(context, leased, now)
        return None

    def _lease_all(self, context: Context, leased: list[tuple[bytes, Entry]], now: int) -> None:
        """Lease these, under the token of those before, and add their pairs."""
        store = context.store
        entries = [entry for _, entry in leased]
        if not self._token:
            chosen = entries + [entry for _, entry in self._chosen]
            self._token = context.tokens.issue(
                chosen, context.tokens.deadline(self.request.timeout, now)
            )
        self.leased.append((self._token, entries))
        moved = []
        for entry in entries:
            store.access(entry, now)
            if move_expiry(context, entry, self.request, now):
                moved.append(entry)
            store.take(entry)
        context.journal.leased(entries, self._token, now, touched=moved)
        for key, entry in leased:
            store.lease(entry, self._token)
            store.hand_out(entry.domain, now)
            self._add(context, entry, key, now)
