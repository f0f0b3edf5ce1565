"""The bound on open slots follows the limit of open files."""

from __future__ import annotations

import resource

import pytest

from fj_forwarder.storage.slot_store import open_slots_max


@pytest.mark.parametrize(
    ("files_max", "wanted"),
    [
        (resource.RLIM_INFINITY, 256), (1024, 256), (548, 256), (547, 255), (256, 110), (40, 2),
        (38, 1), (10, 1),
    ],
)  # fmt: skip
def test_open_slots_are_a_half_of_the_files_that_the_limit_leaves(
    monkeypatch: pytest.MonkeyPatch, files_max: int, wanted: int
) -> None:
    monkeypatch.setattr(resource, "getrlimit", lambda _: (files_max, files_max))
    assert open_slots_max(256) == wanted
