"""Files of a Kestrel journal: which belong to a queue, in the order in which they are read.

``<queue>`` is appended to, ``<queue>.<timestamp>`` are older ones, in the order of the numbers,
and ``<queue>.<timestamp>.pack`` stands for all files up to that number. Names with ``~~`` are
temporary. Sockets, FIFOs and devices are no journals: they are left out.
"""

from __future__ import annotations

import os
import re

from fastjournal.disk import Disk

_OLDER = re.compile(rb"(.+)\.([0-9]+)(\.pack)?", re.DOTALL)
_TEMPORARY = b"~~"
_CURRENT = float("inf")


def list_queues(disk: Disk, directory: str) -> dict[bytes, list[str]]:
    """Return the paths of the files of each queue, in their order; queues in that of their names.

    Raises:
        LogFailedError: The directory cannot be read.
    """
    found: dict[bytes, list[tuple[float, bool, str]]] = {}
    for text in disk.listdir(directory):
        name, path = os.fsencode(text), f"{directory}/{text}"
        if _TEMPORARY in name or disk.is_directory(path) or disk.is_special(path):
            continue
        older = _OLDER.fullmatch(name)
        if older is None:
            found.setdefault(name, []).append((_CURRENT, False, path))
        else:
            file = (int(older[2]), older[3] is not None, path)
            found.setdefault(older[1], []).append(file)
    return {name: _in_order(found[name]) for name in sorted(found)}


def _in_order(files: list[tuple[float, bool, str]]) -> list[str]:
    """Leave out what the newest pack stands for."""
    packed = max((number for number, is_pack, _ in files if is_pack), default=-1)
    return [
        path
        for number, is_pack, path in sorted(files)
        if number > packed or (is_pack and number == packed)
    ]
