"""Replay of records, label by label: the entries that they leave, by the daemon's own rules.

Third stage of the view ``entries`` and of the export. Labels with nothing but entries and links are
resolved at once (``live_entries.linked_entries``), the others record by record. Several labels
are taken together, within a bound. A label beyond it is replayed as its records come: what is live
of it is in memory. No pyspark here.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

import numpy as np
import pyarrow as pa

from fastjournal.spark.decoding.byte_arrays import Numbers
from fastjournal.spark.live_entries.fetch import REPLAYED_SCHEMA
from fastjournal.spark.live_entries.linked_entries import resolve_links
from fastjournal.spark.live_entries.partition_replay import PartReplay, chunked, to_batch

LABELS_RECORDS = 16_384
LABELS_BYTES = 8 * 1024 * 1024
"""Records and bytes of records that are replayed together, if they are of many labels."""
_BATCH_ROWS = 8192
_BATCH_BYTES = 8 * 1024 * 1024


def replay_labels(
    batches: Iterable[pa.RecordBatch], names: Sequence[str]
) -> Iterator[pa.RecordBatch]:
    """Yield the entries that records leave, by the daemon's own rules.

    Args:
        batches: Records as in ``fetch.REPLAYED_SCHEMA``, in the order of label, segment and
            offset.
        names: Columns to build, from ``partition_replay.ENTRY_COLUMNS``.

    Raises:
        LogCorruptError: A record cannot be understood.
    """
    waiting: list[pa.RecordBatch] = []
    large: PartReplay | None = None
    label = 0
    for batch in _in_bounds(batches):
        if large is not None:
            stop = int(np.searchsorted(_labels(batch), label, "right"))
            _feed(large, batch.slice(0, stop))
            if stop == len(batch):
                continue
            yield from _finished(large, names)
            large, batch = None, batch.slice(stop)
        if len(batch):
            waiting.append(batch)
        if not _are_enough(waiting):
            continue
        rows = pa.concat_batches(waiting)
        labels = _labels(rows)
        cut = int(np.searchsorted(labels, labels[-1]))
        yield from _replay_whole(rows.slice(0, cut), names)
        waiting = [rows.slice(cut)]
        if _are_enough(waiting):
            large, label = PartReplay(), int(labels[-1])
            _feed(large, waiting.pop())
    if large is not None:
        yield from _finished(large, names)
    if waiting:
        yield from _replay_whole(pa.concat_batches(waiting), names)


def _in_bounds(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """Yield batches in parts of about the bound: with large values one may be far beyond it."""
    for batch in batches:
        step = max(len(batch) * LABELS_BYTES // max(batch.nbytes, 1), 1)
        for first in range(0, len(batch), step):
            yield batch.slice(first, step)


def _labels(batch: pa.RecordBatch) -> Numbers:
    found: Numbers = batch.column("label").to_numpy()
    return found


def _are_enough(batches: Sequence[pa.RecordBatch]) -> bool:
    records, size = sum(map(len, batches)), sum(batch.nbytes for batch in batches)
    return records >= LABELS_RECORDS or size >= LABELS_BYTES


def _replay_whole(rows: pa.RecordBatch, names: Sequence[str]) -> Iterator[pa.RecordBatch]:
    """Yield the entries of whole labels."""
    if not len(rows):
        return
    resolved, entries = resolve_links(rows, names)
    if len(entries):
        yield entries
    if not resolved.all():
        replay = PartReplay()
        _feed(replay, rows.filter(pa.array(~resolved)))
        yield from _finished(replay, names)


def _feed(replay: PartReplay, rows: pa.RecordBatch) -> None:
    columns = (rows.column(name).to_pylist() for name in REPLAYED_SCHEMA.names)
    for _, segment, offset, raw, token, ours, serial, doubt in zip(*columns, strict=True):
        lease = None if token is None else int.from_bytes(token, "big")
        replay.feed(segment, offset, raw, token=lease, ours=ours, serial=serial, doubt=doubt)


def _finished(replay: PartReplay, names: Sequence[str]) -> Iterator[pa.RecordBatch]:
    for found in chunked(replay.finish(), rows=_BATCH_ROWS, size=_BATCH_BYTES):
        yield to_batch(found).select(names)
