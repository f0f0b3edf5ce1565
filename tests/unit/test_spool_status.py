"""The status of a spool while others work on it."""

from __future__ import annotations

from pathlib import Path

import pytest

from fastjournal.errors import SpoolFailedError
from fastjournal.spool import Slot, Spool, list_slots, spool_status
from fastjournal.spool import status as module


def test_slot_that_is_deleted_meanwhile_is_left_out(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with Spool(tmp_path) as spool:
        spool.append(domain="d")
    listed = list_slots(tmp_path)
    gone = Slot(0, "19700101T000000Z.fjs", str(tmp_path / "19700101T000000Z.fjs"), 100, 100)
    monkeypatch.setattr(module, "list_slots", lambda _: [gone, *listed])
    status = spool_status(tmp_path)
    assert [slot.name for slot in status.slots] == [listed[0].name]
    assert status.pending == 1


def test_slot_of_another_version_is_named(tmp_path: Path) -> None:
    foreign = tmp_path / "20261120T080000Z.fjs"
    foreign.write_bytes(b"fjsp\0\0\0\x02?")
    with pytest.raises(SpoolFailedError, match="another version") as raised:
        spool_status(tmp_path)
    assert raised.value.path == str(foreign)


def test_slots_that_cannot_be_read_are_named_beside_the_others(tmp_path: Path) -> None:
    with Spool(tmp_path) as spool:
        spool.append(domain="d")
    foreign = tmp_path / "19700101T000000Z.fjs"
    foreign.write_bytes(b"fjsp\0\0\0\x02?")
    status = spool_status(tmp_path, strict=False)
    assert status.pending == 1
    (unreadable,) = status.unreadable
    assert (unreadable.name, unreadable.path) == (foreign.name, str(foreign))
    assert "another version" in unreadable.error
