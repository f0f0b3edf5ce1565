"""Work as another user, in tests that run as root."""

from __future__ import annotations

import os
import sys
import traceback
from collections.abc import Callable


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
