"""Work as another user, in tests that run as root.

The other user may be unable to read the checkout and the interpreter: a home directory of root is
closed to it, and so is what a umask of 077 made. So such a test imports and reads what its work
needs before it becomes the user, or brings a copy along.
"""

from __future__ import annotations

import os
import sys
import tempfile
import traceback
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TypeVar

import pytest

Test = TypeVar("Test", bound=Callable[..., None])


def changes_users(test: Test) -> Test:
    """Mark a test that changes users; it is left out where that is not allowed."""
    left_out = pytest.mark.skipif(os.geteuid() != 0, reason="left out: changes users, needs root")
    return pytest.mark.changes_users(left_out(test))


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
