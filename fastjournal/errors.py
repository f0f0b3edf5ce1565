"""The one exception tree: whose fault it is, and what to do.

    FastjournalError
     |- BadRequestError       the caller's: an argument that no daemon would take; a ValueError
     |- ProtocolError         the peer's: bytes that are not FJ/JR
     |- RefusedError          the daemon's answer: an error code of the protocol
     |   |- LeaseLostError    the work is no longer yours
     |   '- LockLostError     the lock of a block is no longer yours
     |- CannotConnectError    nobody listens, or the connection was lost before an answer
     |- LogError              the command log: LogCorruptError, LogLockedError, LogFailedError
     |- SpoolError            the local spool: SpoolFullError, SpoolFailedError, SpoolLockedError
     |- RemoteLogError        the log in an object store
     |   |- StoreUnavailableError  a request failed, perhaps after the store carried it out
     |   |- StoreRefusedError      the store: credentials, bucket, or what it does not promise
     |   |- RemoteLogCorruptError  an object is damaged, or missing
     |   |- ForeignRemoteLogError  an object of another log, or of another writer
     |   '- FencedError            another node has taken over
     |- ConfigError           an option or a configuration file
     |- ExtraMissingError     a package that an extra installs
     '- JavaMissingError      Spark needs Java, and there is none

Every one has ``code`` (a short stable name), and where they apply ``path``, ``offset`` (bytes from
the start of that file), ``hint`` (what to do), ``key`` and ``address`` (of the daemon); ``str``
shows them. ``maybe_done`` says that the daemon may have
carried out what failed, for instance because the connection was lost before the answer came.
"""

from __future__ import annotations

import errno
import os
from typing import Final

LINKS_REFUSED: Final = frozenset({errno.EPERM, errno.EOPNOTSUPP, errno.ENOSYS, errno.EMLINK})
"""Errors of a file system that allows no hard links, or of an owner who allows none of his file."""

LINKS_HINT: Final = (
    "use a file system that allows hard links, such as ext4, XFS or btrfs, and files of this user"
)


class FastjournalError(Exception):
    """Base class of all errors of fastjournal.

    Args:
        message: One sentence, without code, path or hint.
        code: Short stable name; a protocol error code where one fits.
        path: The file concerned.
        offset: Bytes from the start of that file.
        hint: Advice: what to do about it.
    """

    code = "error"
    maybe_done = False
    """The daemon may have carried out the request all the same."""
    key: bytes | None = None
    """Key, or domain, of the request that failed; None: it was about none, or several."""
    address: str | None = None
    """Address of the daemon, where one was asked; all of a list, where none answered."""

    def __init__(
        self,
        message: str,
        *,
        code: str | None = None,
        path: str | os.PathLike[str] | None = None,
        offset: int | None = None,
        hint: str | None = None,
    ) -> None:
        super().__init__(message)
        self.message = message
        if code is not None:
            self.code = code
        self.path = None if path is None else os.fspath(path)
        self.offset = offset
        self.hint = hint

    def __str__(self) -> str:
        text = self.message
        if self.path is not None:
            where = self.path if self.offset is None else f"{self.path} at offset {self.offset}"
            text = f"{where}: {text}"
        about = [] if not self.key else [f"key {self.key.decode('utf-8', 'backslashreplace')!r}"]
        if self.address is not None and any(a not in text for a in self.address.split(",")):
            about.append(f"daemon {self.address}")
        notes = [note for note in (", ".join(about), self.hint) if note]
        return f"{text} ({'; '.join(notes)})" if notes else text


class BadRequestError(FastjournalError, ValueError):
    """Bad argument, which every daemon would refuse; nothing was sent or written."""

    code = "bad-request"


class ProtocolError(FastjournalError):
    """The peer sent bytes that cannot be framed; the connection cannot be used any more.

    Args:
        message: Sentence that says what is wrong with them.
        code: ``bad-request``, ``too-large`` or ``unsupported-version``.
        identifier: The request's identifier as far as it was received, else 0.
    """

    code = "bad-request"

    def __init__(self, message: str, *, code: str = "bad-request", identifier: int = 0) -> None:
        super().__init__(message, code=code)
        self.identifier = identifier


class RefusedError(FastjournalError):
    """The daemon refused a request; ``code`` is its error code, the message its sentence."""

    code = "refused"

    def __str__(self) -> str:
        return f"{self.code}: {super().__str__()}"


class LeaseLostError(RefusedError):
    """The lease ended before the work did: the entry is no longer yours, so abort the work."""

    code = "lease-lost"


class LockLostError(RefusedError):
    """The lock ended before its block did: another may have had the entry, and written."""

    code = "not-owner"


class CannotConnectError(FastjournalError):
    """No daemon listens at the address, or the connection was lost before the reply came."""

    code = "cannot-connect"


class LogError(FastjournalError):
    """Error of the command log (write-ahead log)."""

    code = "log"


class LogCorruptError(LogError):
    """Damage inside the log, or a segment that is missing; nothing was changed."""

    code = "log-corrupt"


class LogLockedError(LogError):
    """Another process holds the log."""

    code = "log-locked"


class LogFailedError(LogError):
    """A write, sync or other call of the operating system failed; the log must not be used on."""

    code = "log-failed"


class SpoolError(FastjournalError):
    """Error of the local spool."""

    code = "spool"


class SpoolFullError(SpoolError):
    """The spool holds spool_bytes_max bytes; nothing was written."""

    code = "spool-full"


class SpoolFailedError(SpoolError):
    """A call of the operating system failed; the record is not in the spool."""

    code = "spool-failed"


class SpoolLockedError(SpoolError):
    """Another forwarder holds the spool."""

    code = "spool-locked"


class RemoteLogError(FastjournalError):
    """Error of the remote log, which is in an object store; ``path`` is the name of an object."""

    code = "remote-log"


class StoreUnavailableError(RemoteLogError):
    """A request to the object store failed or timed out; the store may have carried it out."""

    code = "store-unavailable"
    maybe_done = True


class StoreRefusedError(RemoteLogError):
    """The object store refuses this user, or does not do what a remote log needs of it."""

    code = "store-refused"


class RemoteLogCorruptError(RemoteLogError):
    """An object of the remote log is damaged or missing; nothing was changed."""

    code = "remote-log-corrupt"


class ForeignRemoteLogError(RemoteLogError):
    """An object belongs to another log, or a writer without this epoch has written it."""

    code = "remote-log-foreign"


class FencedError(RemoteLogError):
    """Another node has taken over: this writer acknowledges nothing more."""

    code = "fenced"


class ConfigError(FastjournalError):
    """An option or a configuration file; the message names it and what is allowed."""

    code = "config"


class ExtraMissingError(FastjournalError):
    """A package is not installed; the hint is the command that installs its extra."""

    code = "extra-missing"


class JavaMissingError(FastjournalError):
    """Spark needs Java 17 or newer, and none was found."""

    code = "java-missing"
