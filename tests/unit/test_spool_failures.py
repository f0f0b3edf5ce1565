"""The writer where it cannot write: full disks, full spools, failed syncs."""

from __future__ import annotations

import errno
import os
import resource
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from fastjournal.errors import SpoolFailedError, SpoolFullError
from fastjournal.spool import Spool
from fastjournal.testing.clock import ManualClock
from tests.unit.spool_files import EIGHT, HOUR_US, requests_in


@contextmanager
def file_size_limit(count: int) -> Iterator[None]:
    old = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (count, old[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, old)


def test_full_spool_refuses_and_takes_again_what_fits_after_erasing(tmp_path: Path) -> None:
    with Spool(tmp_path, spool_bytes_max=1000, clock=ManualClock(EIGHT)) as spool:

        def fill() -> None:
            while True:
                spool.append(domain="d", value=b"x" * 50)

        with pytest.raises(SpoolFullError) as caught:
            fill()
        assert caught.value.path == str(tmp_path)
        used = sum(p.stat().st_size for p in tmp_path.iterdir())
        assert 900 - 120 < used <= 1000
        spool.append(domain="d", id="small")


def test_bytes_of_other_processes_and_other_slots_count(tmp_path: Path) -> None:
    clock = ManualClock(EIGHT)
    with (
        Spool(tmp_path, spool_bytes_max=4000, clock=clock) as one,
        Spool(tmp_path, spool_bytes_max=4000, clock=clock) as two,
    ):
        one.append(domain="d", value=b"x" * 1700)
        clock.instant_us += HOUR_US
        one.append(domain="d", value=b"x" * 1000)
        with pytest.raises(SpoolFullError):
            two.append(domain="d", value=b"x" * 1200)
        (tmp_path / "20261120T080000Z.fjs").unlink()
        two.append(domain="d", value=b"x" * 1200)
        with pytest.raises(SpoolFullError):
            one.append(domain="d", value=b"x" * 1700)


def test_hidden_files_of_killed_producers_count_until_they_are_linked(tmp_path: Path) -> None:
    hidden = tmp_path / ".20261120T080000Z-web1.fjs.tmp"
    hidden.write_bytes(bytes(3900))
    with Spool(tmp_path, spool_bytes_max=4000, clock=ManualClock(EIGHT)) as spool:
        with pytest.raises(SpoolFullError):
            spool.append(domain="d", value=b"x" * 100)
        hidden.unlink()
        spool.append(domain="d", value=b"x" * 100)
        hidden.write_bytes(bytes(2000))
        os.link(hidden, tmp_path / "20261120T080000Z-web1.fjs")  # one file of 2,000 bytes
        spool.append(domain="d", value=b"x" * 1000)


def test_short_write_is_an_error_and_becomes_an_erased_record(tmp_path: Path) -> None:
    path = tmp_path / "20261120T080000Z.fjs"
    with Spool(tmp_path, clock=ManualClock(EIGHT)) as spool:
        spool.append(domain="before")
        size = path.stat().st_size
        with file_size_limit(size + 60), pytest.raises(SpoolFailedError) as caught:
            spool.append(domain="torn", value=b"x" * 5000)
        assert caught.value.path == str(path)
        assert path.stat().st_size == size + 60
        spool.append(domain="after")
    domains = [r.key.split(b":")[0] for r in requests_in(path)]
    assert domains == [b"before", b"after"]


def test_short_write_of_a_few_bytes_leaves_zeros_that_are_passed_over(tmp_path: Path) -> None:
    path = tmp_path / "20261120T080000Z.fjs"
    with Spool(tmp_path, clock=ManualClock(EIGHT)) as spool:
        spool.append(domain="before")
        size = path.stat().st_size
        for cut in range(1, 9):
            with file_size_limit(size + cut), pytest.raises(SpoolFailedError):
                spool.append(domain="torn")
            assert path.read_bytes()[size:] == bytes(cut)
            os.truncate(path, size)


def test_write_of_no_byte_at_all_is_an_error_with_a_hint(tmp_path: Path) -> None:
    with Spool(tmp_path, clock=ManualClock(EIGHT)) as spool:
        spool.append(domain="before")
        path = tmp_path / "20261120T080000Z.fjs"
        with file_size_limit(path.stat().st_size), pytest.raises(SpoolFailedError) as caught:
            spool.append(domain="refused")
        assert "EFBIG" in str(caught.value)
        assert caught.value.hint
    assert len(requests_in(path)) == 1


def test_slot_of_another_version_is_left_alone(tmp_path: Path) -> None:
    path = tmp_path / "20261120T080000Z.fjs"
    path.write_bytes(b"fjsp\0\0\0\x02whatever")
    with (
        Spool(tmp_path, clock=ManualClock(EIGHT)) as spool,
        pytest.raises(SpoolFailedError) as caught,
    ):
        spool.append(domain="d")
    assert "version" in str(caught.value)
    assert path.read_bytes() == b"fjsp\0\0\0\x02whatever"


def test_directory_that_cannot_be_made_names_itself(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(SpoolFailedError) as caught:
        Spool(tmp_path / "file")
    assert caught.value.path == str(tmp_path / "file")


def test_failed_sync_is_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(_: int) -> None:
        raise OSError(errno.EIO, os.strerror(errno.EIO))

    monkeypatch.setattr(os, "fdatasync", fail)
    with Spool(tmp_path, durable=True) as spool, pytest.raises(SpoolFailedError, match="EIO"):
        spool.append(domain="d")
