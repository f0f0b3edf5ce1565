from __future__ import annotations

from pathlib import Path

import pytest

from fastjournal.cmdlog.format.layout import (
    pack_position,
    segment_name,
    segment_number,
    unpack_position,
)
from fastjournal.cmdlog.locks import list_segments
from fastjournal.disk import OsDisk


def test_name_and_its_number_stand_for_each_other() -> None:
    assert segment_name(1) == "000000001.log"
    assert segment_number("000000001.log") == 1
    assert segment_number(segment_name(999_999_999)) == 999_999_999


@pytest.mark.parametrize(
    "name",
    [
        "1.log",
        "0000000001.log",
        "000000001.log.rw",
        "000000001.rw",
        "00000000a.log",
        "\u0660\u0660\u0660\u0660\u0660\u0660\u0660\u0660\u0661.log",
        "000000001.log\n",
    ],
)
def test_segment_has_no_other_name(name: str) -> None:
    assert segment_number(name) is None


def test_listing_ignores_other_names_and_allows_gaps(tmp_path: Path) -> None:
    for name in ("000000012.log", "000000003.log", "append.lock", "000000003.log.rw", "x.log"):
        (tmp_path / name).touch()
    assert list_segments(OsDisk(), str(tmp_path)) == [3, 12]


def test_positions_sort_in_the_order_of_writing_and_come_apart_again() -> None:
    places = [(1, 8), (1, 2**40 - 1), (2, 8), (999_999_999, 0)]
    positions = [pack_position(*place) for place in places]
    assert positions == sorted(positions)
    assert [unpack_position(position) for position in positions] == places
