"""Bytes and names of the objects of a remote log."""

from __future__ import annotations

import struct

import google_crc32c
import pytest

from fastjournal.errors import ForeignRemoteLogError, RemoteLogCorruptError
from fastjournal.remote import objects
from fastjournal.remote.objects import (
    HEADER_BYTES,
    Checkpoint,
    Chunk,
    ChunkId,
    ChunkKind,
    Epoch,
    LogFormat,
    SegmentRef,
)

LOG = "8b6e7b2e-52b9-4c0e-9d2c-3a1f0c9f7d11"
NONCE = bytes(range(16))
CHUNK = Chunk(ChunkId(3, 7), ChunkKind.DATA, NONCE, 0x0006_4000_0000_0001, 12, 4096, b"records")
SEAL = Chunk(ChunkId(3, 8), ChunkKind.SEAL, NONCE, 0x0006_4000_0000_0002)
GOLDEN = bytes.fromhex(
    "464a52430101"  # magic, version, kind
    "0000000000000003"  # epoch
    "0000000000000007"  # number
    "000102030405060708090a0b0c0d0e0f"  # nonce
    "0006400000000001"  # time
    "0000000c"  # segment
    "0000000000001000"  # offset
    "00000007"  # length
)
EPOCH = Epoch(4, LOG, "node 1", NONCE, 8, ("one:1701", "two:1701"), "abc123")
REFS = (SegmentRef(2, 300, 0xABC), SegmentRef(11, 4096, 0xFFFFFFFF))


def with_header_crc(header: bytes) -> bytes:
    return header + struct.pack(">I", google_crc32c.value(header))


def test_chunk_header_has_the_bytes_of_its_description() -> None:
    header = GOLDEN + struct.pack(">I", google_crc32c.value(b"records"))

    assert objects.encode_chunk(CHUNK) == with_header_crc(header) + b"records"
    assert HEADER_BYTES == 70


@pytest.mark.parametrize("chunk", [CHUNK, SEAL], ids=["data", "seal"])
def test_chunk_round_trip(chunk: Chunk) -> None:
    data = objects.encode_chunk(chunk)

    assert objects.decode_chunk(chunk.id, data) == chunk
    assert objects.decode_header(chunk.id, data[:HEADER_BYTES]).nonce == NONCE


def test_chunk_cut_or_flipped_anywhere_is_a_named_error() -> None:
    data = objects.encode_chunk(CHUNK)
    cut = [data[:length] for length in range(len(data))]
    flipped = [data[:at] + bytes((data[at] ^ 0x40,)) + data[at + 1 :] for at in range(len(data))]

    for bad in (*cut, *flipped, data + b"x"):
        with pytest.raises(RemoteLogCorruptError) as refused:
            objects.decode_chunk(CHUNK.id, bad)
        assert refused.value.path == "log/0000000003/000000000007"


def header_with(at: int, value: bytes) -> bytes:
    """The chunk with other bytes in its header, and the right checksum of it."""
    data = objects.encode_chunk(CHUNK)
    header = data[:at] + value + data[at + len(value) : HEADER_BYTES - 4]
    return with_header_crc(header) + data[HEADER_BYTES:]


@pytest.mark.parametrize(
    ("data", "message"),
    [
        (header_with(0, b"FJRX"), "it is no chunk"),
        (header_with(4, b"\x02"), "version 2, this release reads 1"),
        (header_with(5, b"\x03"), "a chunk of kind 3 is not known"),
        (header_with(5, b"\x02"), "a seal has bytes of the log"),
        (header_with(46, b"\0\0\0\0"), "0 is no number of a segment"),
        (header_with(46, b"\xff\0\0\0"), "is no number of a segment"),
        (header_with(21, b"\x08"), "a copy of another chunk, log/0000000003/000000000008"),
        (header_with(13, b"\x04"), "a copy of another chunk, log/0000000004/000000000007"),
    ],
)
def test_chunk_of_another_version_kind_or_place_is_refused(data: bytes, message: str) -> None:
    with pytest.raises(RemoteLogCorruptError, match=message):
        objects.decode_chunk(CHUNK.id, data)


def test_chunk_of_a_foreign_writer_is_refused_but_a_seal_may_be_anybodys() -> None:
    epoch = Epoch(3, LOG, "node 2", bytes(16), 0)

    objects.require_nonce(SEAL, epoch)
    with pytest.raises(ForeignRemoteLogError, match="another writer than that of epoch 3, node 2"):
        objects.require_nonce(CHUNK, epoch)


def test_names_sort_as_their_numbers_and_are_read_back() -> None:
    ids = [ChunkId(0, 0), ChunkId(0, 9), ChunkId(0, 10), ChunkId(2, 0), ChunkId(10, 1)]

    for named, read in (
        (objects.chunk_name, objects.chunk_id),
        (objects.checkpoint_name, objects.checkpoint_id),
    ):
        names = [named(chunk) for chunk in ids]
        assert names == sorted(names)
        assert [read(name) for name in names] == ids
        assert read("other") is None
    assert objects.chunk_name(ids[-1]) == "log/0000000010/000000000001"
    assert objects.checkpoint_stem(ids[0]) < objects.checkpoint_name(ids[0])
    assert objects.live_name(ids[0]) == "live/0000000000-000000000000"
    name = objects.segment_object(3, REFS[0])
    assert name == "segments/0000000003/000000002-00000abc-300.log"
    assert objects.segment_ref(name) == (3, REFS[0])
    assert objects.segment_ref("segments/0000000003/2-abc-300.log") is None


def test_json_objects_round_trip() -> None:
    checkpoint = Checkpoint(5, REFS)
    format_file = LogFormat(1, LOG, 2)

    assert objects.decode_epoch(4, objects.encode_json(EPOCH), LOG) == EPOCH
    assert objects.decode_format(objects.encode_json(format_file), LOG) == format_file
    data = objects.encode_checkpoint(checkpoint)
    assert objects.decode_checkpoint(ChunkId(4, 1), data) == checkpoint


def test_json_objects_of_another_log_are_refused() -> None:
    other = "another"

    for decode in (
        lambda: objects.decode_epoch(4, objects.encode_json(EPOCH), other),
        lambda: objects.decode_format(objects.encode_json(LogFormat(1, LOG, 0)), other),
    ):
        with pytest.raises(ForeignRemoteLogError, match=f"belongs to the log {LOG}"):
            decode()


@pytest.mark.parametrize(
    ("data", "message"),
    [
        (b"", "it cannot be read"),
        (b"\xff{}", "it cannot be read"),
        (b'{"format":2,"time_us":1,"segments":[]}', "it has format 2"),
        (b'{"format":1,"time_us":1}', "missing required field `segments`"),
        (b'{"format":1,"time_us":1,"segments":["../x"]}', "'../x' is no segment"),
        (
            b'{"format":1,"time_us":1,"segments":["000000002-00000abc-3.log",'
            b'"000000002-00000abc-4.log"]}',
            "no segment behind the one before",
        ),
    ],
)
def test_damaged_checkpoint_is_a_named_error(data: bytes, message: str) -> None:
    with pytest.raises(RemoteLogCorruptError, match=message) as refused:
        objects.decode_checkpoint(ChunkId(1, 2), data)
    assert refused.value.path == "checkpoints/0000000001-000000000002.json"


def test_damaged_epoch_is_a_named_error() -> None:
    bad = [
        (EPOCH, 5, "a copy of epoch 4"),
        (Epoch(4, LOG, "n", b"short", 8), 4, "no nonce of 16 bytes"),
        (Epoch(4, LOG, "n", NONCE, -1), 4, "no number of a seal"),
    ]
    for epoch, number, message in bad:
        with pytest.raises(RemoteLogCorruptError, match=message):
            objects.decode_epoch(number, objects.encode_json(epoch), LOG)


def test_format_of_another_version_is_a_named_error() -> None:
    with pytest.raises(RemoteLogCorruptError, match="format 9, this release reads 1"):
        objects.decode_format(objects.encode_json(LogFormat(9, LOG, 0)), LOG)
