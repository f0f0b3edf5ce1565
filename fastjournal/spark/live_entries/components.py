"""Connected components of jobs that share terms, on shards: what is replayed together.

Steps of the plan of live entries (``live_entries.sharded_plan``). A *root* stands for a
component of jobs in one shard, a *label* for one of the log; both are the least ``node`` in it.
No pyspark here.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from typing import TypeVar

import pyarrow as pa

from fastjournal.spark.execution.shard import Shard, Shards
from fastjournal.spark.execution.shard_rows import Sent, by_column, numbers_of, to_one
from fastjournal.spark.live_entries.plan import (
    GONE,
    LARGE_STAR,
    NEIGHBOURS,
    SMALL_STAR,
    find_labels,
    find_members,
    join_pairs,
)

ROUNDS = 3
"""Rounds between shards; each one at least halves what is left to join."""
REST_SHARD = 0
"""Shard that joins what the rounds leave."""
_S = TypeVar("_S", bound=Shards)


def join_roots(near: _S) -> _S:
    """Return the components of roots in different shards, from what ``contract`` sends."""
    rounds = near.then(pair_roots)
    for number in range(ROUNDS):
        is_last = number == ROUNDS - 1
        rounds = rounds.then(large_star).then(partial(small_star, is_last=is_last))
    return rounds.then(leave_rest).then(gather_rest).then(join_rest)


_NEAR = """
SELECT m.term, m.node, m.added, m.gone, s.bad, s.wide
FROM {members} AS m JOIN {shared} AS s ON m.term = s.term
"""
_ROOTS = """
SELECT l.label AS root, {home} AS home,
    max(CASE WHEN n.bad AND NOT n.gone THEN 1 ELSE 0 END) AS seed,
    min(CASE WHEN NOT n.gone THEN n.added END) AS start
FROM {near} AS n JOIN {labels} AS l ON n.node = l.node GROUP BY l.label
HAVING max(CASE WHEN n.wide OR (n.bad AND NOT n.gone) THEN 1 ELSE 0 END) = 1
"""
_EDGES = """
SELECT DISTINCT n.term, l.label AS root FROM {near} AS n JOIN {labels} AS l ON n.node = l.node
WHERE n.wide
"""
_NODES = f"""
SELECT j.node, r.root, j.timestamp, j.removed, {GONE} AS gone
FROM {{jobs}} AS j JOIN {{labels}} AS l ON j.node = l.node JOIN {{roots}} AS r ON l.label = r.root
"""
_ROOT_PAIRS = """
SELECT DISTINCT root AS v, m FROM (
    SELECT root, min(root) OVER (PARTITION BY term) AS m FROM {edges}
) AS found
WHERE root <> m
"""


def contract(shard: Shard, *, permissive: bool) -> Iterator[Sent]:
    """Send components of the shard, from ``facts`` and ``shared``.

    ``roots`` and ``edges`` are about the components that may go on in other shards or have a bad
    term, ``nodes`` about their jobs.
    """
    if not shard.has("shared"):
        return
    engine = shard.engine
    jobs, members = find_members(engine, shard.rows("facts"), permissive=permissive)
    near = engine.store("near", _NEAR, members=members, shared=shard.rows("shared"))
    nodes = engine.store("connected", "SELECT DISTINCT node FROM {near}", near=near)
    labels = find_labels(engine, near, nodes)
    roots = engine.store("roots", _ROOTS, near=near, labels=labels, home=str(shard.number))
    told = shard.table("SELECT * FROM {roots}", roots=roots)
    yield by_column("roots", told, "root", shard.shards)
    edges = shard.table(_EDGES, near=near, labels=labels)
    yield by_column("edges", edges, "term", shard.shards)
    found = shard.table(_NODES, jobs=jobs, labels=labels, roots=roots)
    yield to_one("nodes", found, shard.number)


def pair_roots(shard: Shard) -> Iterator[Sent]:
    """Send roots that share a term, as neighbours, from ``edges``."""
    if shard.has("edges"):
        pairs = shard.engine.store("pairs", _ROOT_PAIRS, edges=shard.rows("edges"))
        yield _neighbours(shard, pairs)


def large_star(shard: Shard) -> Iterator[Sent]:
    """Send the pairs of a large-star step, from neighbours."""
    found = shard.table(LARGE_STAR, near=shard.rows("near"))
    yield by_column("pairs", found, "v", shard.shards)


def small_star(shard: Shard, *, is_last: bool) -> Iterator[Sent]:
    """Send the pairs of a small-star step: as neighbours, or as pairs after the last round."""
    pairs = shard.engine.store("small", SMALL_STAR, pairs=shard.rows("pairs"))
    if is_last:
        found = shard.table("SELECT * FROM {pairs}", pairs=pairs)
        yield by_column("pairs", found, "v", shard.shards)
    else:
        yield _neighbours(shard, pairs)


def _neighbours(shard: Shard, pairs: str) -> Sent:
    return by_column("near", shard.table(NEIGHBOURS, pairs=pairs), "u", shard.shards)


_LEAST = "SELECT v, min(m) AS m FROM {pairs} GROUP BY v"
_OTHERS = """
SELECT p.m AS v, l.m FROM {pairs} AS p JOIN {least} AS l ON p.v = l.v WHERE p.m <> l.m
"""
_CHAINED = "SELECT l.v, l.m FROM {least} AS l SEMI JOIN {used} AS u ON l.v = u.m"
_MOVED = """
SELECT v, min(m) AS label FROM {pairs} GROUP BY v
"""
_PAIR_SCHEMA = pa.schema([("v", pa.int64()), ("m", pa.int64())])


def leave_rest(shard: Shard) -> Iterator[Sent]:
    """Send ``least``, one pair a node, and the nodes that pairs lead to, from ``pairs``."""
    pairs = shard.rows("pairs")
    least = shard.engine.store("least", _LEAST, pairs=pairs)
    others = shard.table(_OTHERS, pairs=pairs, least=least)
    yield to_one("least", shard.table("SELECT * FROM {least}", least=least), shard.number)
    yield to_one("rest", others, REST_SHARD)
    used = shard.table("SELECT DISTINCT m FROM {least}", least=least)
    yield by_column("used", used, "m", shard.shards)


def gather_rest(shard: Shard) -> Iterator[Sent]:
    """Send the pairs that do not lead to the least node of their component to one shard."""
    if shard.has("least") and shard.has("used"):
        found = shard.table(_CHAINED, least=shard.rows("least"), used=shard.rows("used"))
        yield to_one("rest", found, REST_SHARD)
    yield from shard.pass_on("rest", to=REST_SHARD)
    yield from shard.pass_on("least")


def join_rest(shard: Shard) -> Iterator[Sent]:
    """Send where the nodes of ``rest`` belong, ``moved``, by node."""
    yield from shard.pass_on("least")
    if shard.has("rest"):
        pairs = shard.engine.store("rest", "SELECT DISTINCT v, m FROM {r}", r=shard.rows("rest"))
        moved = shard.table(_MOVED, pairs=join_pairs(shard.engine, pairs))
        yield by_column("moved", moved, "v", shard.shards)


# --- jobs that are replayed -----------------------------------------------------------------------

_LABELLED = """
SELECT r.root, r.home, r.seed, r.start, coalesce(l.m, r.root) AS label
FROM {roots} AS r LEFT JOIN {least} AS l ON r.root = l.v
"""
_MOVED_LABELS = """
SELECT l.root, l.home, l.seed, l.start, coalesce(m.label, l.label) AS label
FROM {labels} AS l LEFT JOIN {moved} AS m ON m.v = l.label
"""
_MOVED_SCHEMA = pa.schema([("v", pa.int64()), ("label", pa.int64())])
_STARTS = """
SELECT root, home, label, start FROM (
    SELECT root, home, label, min(start) OVER (PARTITION BY label) AS start,
        max(seed) OVER (PARTITION BY label) AS seed
    FROM {labels}
) AS found
WHERE seed = 1
"""
_TANGLED = """
SELECT n.node, l.label, n.timestamp, NOT coalesce(n.gone AND n.removed < l.start, FALSE) AS stays
FROM {nodes} AS n JOIN {labels} AS l ON n.root = l.root
"""
_OLDEST = """
SELECT label, {home} AS home, min(CASE WHEN stays THEN timestamp END) AS oldest
FROM {tangled} GROUP BY label
"""
_OLDEST_OVER_SHARDS = """
SELECT label, home, min(oldest) OVER (PARTITION BY label) AS oldest FROM {oldest}
"""


def label_roots(shard: Shard) -> Iterator[Sent]:
    """Send the roots with their label after the rounds, from ``roots`` and ``least``."""
    yield from shard.pass_on("moved")
    if shard.has("roots"):
        roots, least = shard.rows("roots"), shard.rows("least", _PAIR_SCHEMA)
        found = shard.table(_LABELLED, roots=roots, least=least)
        yield by_column("labels", found, "label", shard.shards)


def move_labels(shard: Shard) -> Iterator[Sent]:
    """Send the roots with the label of their component, from ``labels`` and ``moved``."""
    if shard.has("labels"):
        labels, moved = shard.rows("labels"), shard.rows("moved", _MOVED_SCHEMA)
        found = shard.table(_MOVED_LABELS, labels=labels, moved=moved)
        yield by_column("labels", found, "label", shard.shards)


def find_starts(shard: Shard) -> Iterator[Sent]:
    """Send labels home, of components with a bad term, with when their first live job came."""
    found = shard.table(_STARTS, labels=shard.rows("labels"))
    yield Sent("labels", found, numbers_of(found, "home"))


def keep_jobs(shard: Shard) -> Iterator[Sent]:
    """Send the shard's jobs in such components, and the oldest timestamp of each component."""
    if shard.has("labels"):
        nodes, labels = shard.rows("nodes"), shard.rows("labels")
        tangled = shard.engine.store("tangled", _TANGLED, nodes=nodes, labels=labels)
        found = shard.table("SELECT * FROM {tangled}", tangled=tangled)
        yield to_one("tangled", found, shard.number)
        oldest = shard.table(_OLDEST, tangled=tangled, home=str(shard.number))
        yield by_column("oldest", oldest, "label", shard.shards)


def find_oldest(shard: Shard) -> Iterator[Sent]:
    """Send home the oldest timestamp of each component."""
    yield from shard.pass_on("tangled")
    if shard.has("oldest"):
        found = shard.table(_OLDEST_OVER_SHARDS, oldest=shard.rows("oldest"))
        yield Sent("oldest", found, numbers_of(found, "home"))
