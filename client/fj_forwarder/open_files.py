"""Open files: how many slots fit under the limit of the process (``ulimit -n``, LimitNOFILE)."""

from __future__ import annotations

import resource

from fastjournal.limits import OTHER_FILES_MAX


def open_slots_max(most: int) -> int:
    """Return how many slots may be open at a time: ``most``, or fewer where the limit is low.

    A half of what the limit leaves beside the other files of a forwarder, but one at least.
    """
    files_max, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    if files_max == resource.RLIM_INFINITY:
        return most
    return max(1, min(most, (files_max - OTHER_FILES_MAX) // 2))
