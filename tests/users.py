"""Work as another user, in tests that run as root."""

from __future__ import annotations

import os
import sys
import tempfile
import traceback
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path


@contextmanager
def shared_spool(group: int) -> Iterator[Path]:
    """Make a directory that every user can enter, with an empty spool of a group in it.

    It lies outside of those of pytest, which takes the rights of others from their parents.
    """
    with tempfile.TemporaryDirectory(prefix="fj-", dir="/tmp") as name:
        os.chmod(name, 0o711)
        spool = Path(name, "spool")
        spool.mkdir()
        os.chown(spool, 0, group)
        spool.chmod(0o2770)
        yield spool


def as_user(uid: int, group: int, work: Callable[[], object]) -> int:
    """Run it in a process of a user; return its exit status.

    Args:
        uid: The user, and its own group.
        group: Its only further group.
        work: Its work, under a umask that takes all rights from others.
    """
    child = os.fork()
    if child == 0:
        try:
            os.setgroups([group])
            os.setgid(uid)
            os.setuid(uid)
            os.umask(0o077)
            work()
        except BaseException:  # noqa: BLE001 - told and counted
            traceback.print_exc(file=sys.stderr)
            os._exit(1)
        os._exit(0)
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
