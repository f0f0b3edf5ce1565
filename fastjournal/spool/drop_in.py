"""Drop-in writer: a whole spool file that appears under its name at once, by ``link``."""

from __future__ import annotations

import contextlib
import os
import secrets
import time
from collections.abc import Iterable

from fastjournal.file_sync import sync_all
from fastjournal.spool.format import FILE_HEADER
from fastjournal.spool.slots import (
    FILE_MODE,
    SLOT_SUFFIX,
    TEMPORARY_SUFFIX,
    link_slot,
    set_access,
    slot_name,
    spool_failed,
    sync_directory,
)

_NEW_FILE = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC


def write_drop_in(directory: str | os.PathLike[str], label: str, records: Iterable[bytes]) -> str:
    """Make a drop-in of some records, durably.

    Args:
        directory: The spool, which exists.
        label: Begin of the part of the name after the slot.
        records: From ``encode_record``.

    Returns:
        The name of the file.

    Raises:
        SpoolFailedError: It cannot be written, and does not exist. Or it exists and is sent, but a
            power cut may take its name, which could not be synced: the message says so. Records
            that are written again are sent twice, which changes nothing for SET and DELETE.
    """
    slot = slot_name(int(time.time())).removesuffix(SLOT_SUFFIX)
    name = f"{slot}-{label}-{secrets.token_hex(8)}{SLOT_SUFFIX}"
    path = os.path.join(directory, name)
    temporary = os.path.join(directory, f".{name}{TEMPORARY_SUFFIX}")
    is_there = False
    try:
        descriptor = os.open(temporary, _NEW_FILE, FILE_MODE)
        try:
            with open(descriptor, "wb") as file:
                set_access(descriptor, os.fspath(directory))
                file.write(FILE_HEADER)
                file.writelines(records)
                file.flush()
                sync_all(descriptor)
            link_slot(temporary, path)
            is_there = True
        finally:
            with contextlib.suppress(FileNotFoundError):
                os.unlink(temporary)
        sync_directory(os.fspath(directory))
    except OSError as error:
        action = "sync the name of a drop-in, which is there" if is_there else "write a drop-in"
        raise spool_failed(action, path, error) from error
    return name
