"""Any mixture of records and damage: every record is found, every other byte is kept."""

from __future__ import annotations

import os
import tempfile

from hypothesis import given
from hypothesis import strategies as st

from fastjournal.spool import Kind, SlotReader
from fastjournal.spool import format as form

FRAMES = st.binary(max_size=40)


@st.composite
def erased(draw: st.DrawFn) -> bytes:
    return b"E" + form.encode_record(draw(FRAMES))[1:]


@st.composite
def torn(draw: st.DrawFn) -> bytes:
    record = form.encode_record(draw(FRAMES))
    return record[: draw(st.integers(1, len(record) - 1))]


@st.composite
def flipped(draw: st.DrawFn) -> bytes:
    record = bytearray(form.encode_record(draw(FRAMES)))
    record[draw(st.integers(0, len(record) - 1))] ^= draw(st.integers(1, 255))
    return bytes(record)


GOOD = st.one_of(st.builds(form.encode_record, FRAMES), erased())
BAD = st.one_of(torn(), flipped(), st.binary(min_size=1, max_size=30))
PARTS = st.lists(st.one_of(st.tuples(st.just(True), GOOD), st.tuples(st.just(False), BAD)))


@given(PARTS, st.integers(1, 5))
def test_spool_reader_finds_every_record_and_its_pieces_tile_the_file(
    parts: list[tuple[bool, bytes]], count_max: int
) -> None:
    data = form.FILE_HEADER + b"".join(raw for _, raw in parts)
    with tempfile.NamedTemporaryFile() as file:
        os.write(file.fileno(), data)
        pieces = []
        with SlotReader(file.name) as reader:
            while more := reader.read(count_max):
                pieces += more
            while more := reader.read(count_max, final=True):
                pieces += more
    at = form.FILE_HEADER_BYTES
    for piece in pieces:
        assert piece.offset == at
        raw = data[piece.offset : piece.end]
        if piece.kind is Kind.DAMAGE:
            assert piece.data == raw
        elif piece.kind is Kind.PENDING:
            assert raw == form.encode_record(piece.data)
        else:
            assert raw[:1] == b"E"
        at = piece.end
    assert at == len(data)

    # A flipped or torn record can itself look like a longer erased one, so only the pending
    # records count: none of them is lost to the damage around it.
    wanted, at = set(), form.FILE_HEADER_BYTES
    for good, raw in parts:
        if good and raw[:1] == b"P":
            wanted.add((at, at + len(raw)))
        at += len(raw)
    found = {(piece.offset, piece.end) for piece in pieces if piece.kind is Kind.PENDING}
    assert wanted <= found
