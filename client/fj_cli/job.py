"""The work on one entry: run the command, hold the lease meanwhile, tell the daemon the end."""

from __future__ import annotations

import os

import trio

from fastjournal.client import Entry
from fastjournal.client.core import calls
from fastjournal.errors import CannotConnectError, RefusedError
from fj_cli.child import (
    NOT_STARTED,
    environment_of,
    input_of,
    is_transient,
    open_child,
    run_child,
)
from fj_cli.courier import LATER, Courier
from fj_cli.notes import Notes
from fj_cli.reports import Ended, Outcome
from fj_cli.retries import Retries

_EXTENSIONS_PER_LEASE = 3
"""Two may fail before the lease ends."""

_LAST_RELEASE_S = 5.0

_START_AGAIN_S = 1.0
"""Pause before a command is started again where the system lacks something."""

_START_TRIES = 60
"""So often; then somebody else may have the entry."""

_LEASE_IS_OVER = ("lease-lost", "not-found")
"""Refusals of an extension; after any other one the lease goes on as it was."""

_OF_THIS_ENTRY = (*_LEASE_IS_OVER, *LATER)
"""Refusals of an end that say nothing of the next one."""


class Job:
    """Works on one leased entry.

    Args:
        entry: With its token and metadata.
        argv: The command.
        lease_us: Microseconds by which the lease is extended, again and again.
        courier: Talks to the daemon.
        retries: Says what follows a failure.
        notes: Takes what is to be told meanwhile.
        stop: Once set, a command that has not begun does not begin.
        server: The daemon's address, for the command.
    """

    def __init__(
        self,
        entry: Entry,
        argv: list[str],
        *,
        lease_us: int,
        courier: Courier,
        retries: Retries,
        notes: Notes,
        stop: trio.Event,
        server: str,
    ) -> None:
        assert entry.token is not None, "not leased"
        self._key = entry.key
        self._token = entry.token
        self._entry = entry
        self._argv = argv
        self._lease_us = lease_us
        self._courier = courier
        self._retries = retries
        self._notes = notes
        self._stop = stop
        self._server = server
        self._remark = ""
        self._leases_lost = 0 if entry.meta is None else entry.meta.attempts
        self._lease_ends = trio.current_time() + lease_us / 1e6
        self._lost: RefusedError | CannotConnectError | None = None

    async def run(self) -> Outcome:
        """Run the command and end the work; return how it ended.

        Raises:
            CannotConnectError: The daemon stayed away, so that it does not know the end.
            RefusedError: It refused the end, and will refuse that of every other entry.
        """
        code: int | None = None
        try:
            async with trio.open_nursery() as nursery:
                nursery.start_soon(self._extend, nursery.cancel_scope)
                code = await self._run_command()
                nursery.cancel_scope.cancel()
        finally:
            if code is None and self._lost is None:
                await self._release_at_once()
        if isinstance(self._lost, CannotConnectError):
            raise self._lost
        if self._lost is not None:
            return self._lost_outcome(code, self._lost)
        if code is None:
            return Outcome(Ended.STOPPED, remark=self._remark)
        with trio.CancelScope(shield=True):
            outcome = await self._conclude(code)
        return outcome  # noqa: RET504 - a scope may swallow what was raised in it

    async def _run_command(self) -> int | None:
        """Return the exit code of the command; None: it was not started, and the entry goes back.

        What the system lacks says nothing of the entry, so that is no failed attempt of it.
        """
        for _ in range(_START_TRIES):
            try:
                process = await open_child(self._argv, self._environment())
            except OSError as error:
                remark = f"cannot run {self._argv[0]}: {error.strerror}"
                if not is_transient(error):
                    self._remark = remark
                    return NOT_STARTED
                if not self._remark:
                    self._notes.add(f"{remark}; trying again")
                self._remark = remark
            else:
                self._remark = ""
                return await run_child(process, input_of(self._entry))
            with trio.move_on_after(_START_AGAIN_S):
                await self._stop.wait()
            if self._stop.is_set():
                break
        return None

    def _environment(self) -> dict[str, str]:
        attempts = self._retries.attempts(self._key, self._leases_lost)
        return environment_of(self._entry, attempts=attempts, server=self._server, base=os.environ)

    def _patience_s(self) -> float:
        return max(0.0, self._lease_ends - trio.current_time())

    # --- while the command runs -----------------------------------------------------------------

    async def _extend(self, command: trio.CancelScope) -> None:
        pause_s = self._lease_us / 1e6 / _EXTENSIONS_PER_LEASE
        while self._lost is None:
            await trio.sleep(pause_s)
            # An extension under way is seen through: without its reply the token is not known.
            with trio.CancelScope(shield=True):
                await self._extend_once()
        command.cancel()

    async def _extend_once(self) -> None:
        asked_at = trio.current_time()
        call = calls.touch(self._key, self._token, ttl_us=self._lease_us)
        try:
            token = await self._courier.call(call, self._patience_s())
        except RefusedError as error:
            if error.code in _LEASE_IS_OVER or trio.current_time() >= self._lease_ends:
                self._lost = error
            return
        except CannotConnectError as error:
            self._lost = error
            return
        assert token is not None, "an extended lease has a token"
        self._token = token
        self._lease_ends = asked_at + self._lease_us / 1e6

    async def _release_at_once(self) -> None:
        """The worker is ending at once: give the entry back, as far as that can be done."""
        with trio.move_on_after(_LAST_RELEASE_S, shield=True):
            try:
                await self._courier.call(calls.release(self._key, self._token), 0)
            except (RefusedError, CannotConnectError):
                return  # it comes back when its lease ends

    # --- after it -------------------------------------------------------------------------------

    async def _conclude(self, code: int) -> Outcome:
        try:
            return await (self._complete() if code == 0 else self._fail(code))
        except RefusedError as error:
            if error.code not in _OF_THIS_ENTRY:
                await self._release_at_once()
                raise
            return self._lost_outcome(code, error)

    async def _complete(self) -> Outcome:
        call = calls.delete(self._key, token=self._token)
        await self._courier.call(call, self._patience_s(), done_before="not-found")
        self._retries.forget(self._key)
        return Outcome(Ended.DONE, 0)

    async def _fail(self, code: int) -> Outcome:
        verdict = self._retries.failed(self._key, self._leases_lost)
        if verdict.enough:
            reason = f"exit {code} at attempt {verdict.attempts}"
            call = calls.bury(self._key, self._token, reason=reason)
            await self._courier.call(call, self._patience_s(), done_before="lease-lost")
            self._retries.forget(self._key)
            return Outcome(Ended.BURIED, code, remark=reason)
        await self._courier.call(
            calls.release(self._key, self._token, delay_us=verdict.delay_us),
            self._patience_s(),
            done_before="lease-lost",
        )
        return Outcome(Ended.FAILED, code, verdict.delay_us, remark=self._remark)

    def _lost_outcome(self, code: int | None, refusal: RefusedError) -> Outcome:
        self._retries.forget(self._key)
        return Outcome(Ended.LOST, code, remark=f"{refusal.code}: {refusal.message}")
