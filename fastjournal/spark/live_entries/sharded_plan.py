"""Plan of live entries on shards: which records make the entries of a log of any size.

The statements are those of ``live_entries.plan``. A log is divided twice, by job and by
term, into the same number of shards. Each step reads what came to its shard, and none needs the
whole log:

1. ``tell_terms``, by job: jobs and their terms from facts. One row a term and shard goes to
   ``judge_terms``, however many jobs share a URI.
2. ``judge_terms``, by term: tells the shards which terms they share with other jobs, and which are
   bad: their live entry is not independent.
3. ``contract``, by job: jobs that share terms become components of the shard. A component goes on
   as one node, its root. ``pair_roots``, by term: pairs of roots that share a term.
4. ``large_star``, ``small_star``, by node: rounds of connected components. ``leave_rest`` and
   ``gather_rest`` send the pairs that the rounds leave to one shard, and ``join_rest`` joins them.
5. ``label_roots``, by node, and ``move_labels``, by label: the component of each root.
   ``find_starts``, by label: components with a bad term. ``keep_jobs``, by job, and
   ``find_oldest``, by label: which of their jobs are replayed.
6. ``choose_records``, by job: places of records, sent to the shard of their segment.

The number of steps is fixed, so an engine can plan them before it runs any. No pyspark here.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from typing import Any, TypeVar

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from fastjournal.errors import LogCorruptError
from fastjournal.spark.decoding.byte_arrays import Numbers
from fastjournal.spark.decoding.rows import RecordKind
from fastjournal.spark.execution.shard import Shard, Shards
from fastjournal.spark.execution.shard_rows import Sent, by_column, numbers_of, shard_of, to_one
from fastjournal.spark.live_entries.components import (
    contract,
    find_oldest,
    find_starts,
    join_roots,
    keep_jobs,
    label_roots,
    move_labels,
)
from fastjournal.spark.live_entries.facts import CHAIN_FACTS, PLACE_BITS, check_facts, read_facts
from fastjournal.spark.live_entries.plan import (
    BASES,
    IS_BAD,
    PLAIN,
    TERM_FACTS,
    find_members,
    find_replayed,
)
from fastjournal.spark.storage.files import LogDirectory, SegmentFile

SEGMENT_SHARD = 0
"""Shard by job that has the facts about segments."""
_S = TypeVar("_S", bound=Shards)


def find_records(
    facts: _S, source: LogDirectory, *, shards: int, fetches: int, permissive: bool
) -> _S:
    """Return the places of the records that make live entries, by the shard of their segment.

    Args:
        facts: Parcels that ``send_facts`` sends of all segments.
        source: The log or snapshot.
        shards: Number of shards of the steps.
        fetches: Number of shards of the result, see ``fetch_of``.
        permissive: Removals behind damage may be not applied; a missing segment is no error.

    Returns:
        Relations ``plain``, ``replayed`` and ``bases`` as in ``plan.Wanted``; with
        ``permissive`` also ``damage`` and ``missing``.
    """
    terms = facts.then(partial(tell_terms, source=source, permissive=permissive))
    shared = terms.then(judge_terms)
    near = facts.with_others(shared, partial(contract, permissive=permissive))
    # components of one shard are whole
    labels = (
        near.then(label_roots)
        if shards == 1
        else near.with_others(join_roots(near), label_roots).then(move_labels)
    )
    kept = near.with_others(labels.then(find_starts), keep_jobs).then(find_oldest)
    choose = partial(choose_records, source=source, fetches=fetches, permissive=permissive)
    return facts.with_others(kept, choose, into=fetches)


# --- facts ----------------------------------------------------------------------------------------


def send_facts(
    files: Any, segment: SegmentFile, shards: int, *, permissive: bool
) -> Iterator[Sent]:
    """Send the facts of one segment: ``facts`` of records by job, ``told`` of the segment.

    Raises:
        LogCorruptError: Damage, with path and offset, where not ``permissive``.
        LogFailedError: The file cannot be read.
    """
    table = pa.Table.from_batches(list(read_facts(files, segment, permissive=permissive)))
    of_records = pc.less_equal(table.column("kind"), int(RecordKind.DOUBTFUL))
    yield to_one("told", table.filter(pc.invert(of_records)), SEGMENT_SHARD)
    facts = table.filter(of_records).drop_columns(["note"]).combine_chunks()
    jobs = numbers_of(facts, "high") ^ np.multiply(numbers_of(facts, "low"), np.int64(0x2545F491))
    yield Sent("facts", facts, shard_of(jobs, shards))


# --- terms ----------------------------------------------------------------------------------------

_TERMS = "SELECT term, {home} AS home, " + ", ".join(
    f"{sql} AS {name}" for name, sql in TERM_FACTS.items()
)
_OVER_SHARDS = {name: f"{sql[:3]}({name})" for name, sql in TERM_FACTS.items()}
_JUDGED = f"""
SELECT t.home, t.term, s.bad, s.wide FROM {{terms}} AS t JOIN (
    SELECT term, coalesce({IS_BAD.format(**_OVER_SHARDS)}, FALSE) AS bad,
        min(home) <> max(home) AS wide
    FROM {{terms}} GROUP BY term
    HAVING {_OVER_SHARDS["first_node"]} <> {_OVER_SHARDS["last_node"]}
) AS s ON t.term = s.term
"""


def tell_terms(shard: Shard, *, source: LogDirectory, permissive: bool) -> Iterator[Sent]:
    """Send what the shard's jobs say of their terms, from ``facts``.

    Raises:
        LogCorruptError: A segment is missing, or was cut or replaced, where not ``permissive``.
    """
    if shard.has("told") and not permissive:
        _check_segments(shard, source)
    if shard.has("facts"):
        _, members = find_members(shard.engine, shard.rows("facts"), permissive=permissive)
        terms = _TERMS + " FROM {members} GROUP BY term"
        found = shard.table(terms, members=members, home=str(shard.number))
        yield by_column("terms", found, "term", shard.shards)


def judge_terms(shard: Shard) -> Iterator[Sent]:
    """Send to each shard which of its terms several jobs have, and which of these are bad."""
    found = shard.table(_JUDGED, terms=shard.rows("terms"))
    yield Sent("shared", found, numbers_of(found, "home"))


# --- records ------------------------------------------------------------------------------------

_LABELS = """
SELECT t.node, t.label, t.stays OR coalesce(t.timestamp > o.oldest, FALSE) AS kept
FROM {tangled} AS t JOIN {oldest} AS o ON t.label = o.label
"""
_KEPT = """
SELECT j.high, j.low, l.label FROM {jobs} AS j JOIN {labels} AS l ON j.node = l.node WHERE l.kept
"""
_TANGLED_SCHEMA = pa.schema(
    [("node", pa.int64()), ("label", pa.int64()), ("timestamp", pa.int64()), ("stays", pa.bool_())]
)
_OLDEST_SCHEMA = pa.schema([("label", pa.int64()), ("home", pa.int32()), ("oldest", pa.int64())])


def choose_records(
    shard: Shard, *, source: LogDirectory, fetches: int, permissive: bool
) -> Iterator[Sent]:
    """Send the places of the records that make entries to the shards that read their segments.

    From ``facts``, ``tangled`` and ``oldest``: ``plain`` and ``replayed``, as in
    ``plan.Wanted``.
    """
    if shard.has("told"):
        yield from _describe_segments(shard, source, fetches=fetches, permissive=permissive)
    if not shard.has("facts"):
        return
    engine, facts = shard.engine, shard.rows("facts")
    jobs, _ = find_members(engine, facts, permissive=permissive)
    tangled = shard.rows("tangled", _TANGLED_SCHEMA)
    oldest = shard.rows("oldest", _OLDEST_SCHEMA)
    labels = engine.store("labels", _LABELS, tangled=tangled, oldest=oldest)
    kept = engine.store("kept", _KEPT, jobs=jobs, labels=labels)
    plain = engine.table(PLAIN, jobs=jobs, labels=labels)
    yield Sent("plain", plain, fetch_of(numbers_of(plain, "place"), fetches))
    replayed = find_replayed(engine, facts, jobs, labels, kept)
    found = shard.table("SELECT * FROM {rows}", rows=replayed)
    yield Sent("replayed", found, fetch_of(numbers_of(found, "place"), fetches))


def _describe_segments(
    shard: Shard, source: LogDirectory, *, fetches: int, permissive: bool
) -> Iterator[Sent]:
    """Send ``bases`` and ``damage`` of segments to the shards that read them, from ``told``."""
    told = shard.rows("told")
    bases = shard.table(BASES, facts=told)
    yield Sent("bases", bases, fetch_of(numbers_of(bases, "segment"), fetches))
    if permissive:
        damage = shard.table(
            f"SELECT place, note FROM {{t}} WHERE kind = {RecordKind.DAMAGE:d}", t=told
        )
        yield Sent("damage", damage, fetch_of(numbers_of(damage, "place"), fetches))
        try:
            _check_segments(shard, source)
        except LogCorruptError as error:
            missing = pa.table({"place": pa.array([None], pa.int64()), "note": [str(error)]})
            yield to_one("missing", missing, 0)


def _check_segments(shard: Shard, source: LogDirectory) -> None:
    """Check the chain of segments by ``told``.

    Raises:
        LogCorruptError: A segment is missing, or was cut or replaced.
    """
    told = shard.table(CHAIN_FACTS, facts=shard.rows("told"))
    check_facts(source, zip(*(one.to_pylist() for one in told.columns), strict=True))


def fetch_of(places: Numbers, fetches: int) -> Numbers:
    """Return the shard that reads the segment of each place."""
    return (places >> PLACE_BITS) % fetches
