"""Query plan of live entries: SQL that finds which records make the entries of a log.

The one algorithm of the export, which runs it as a whole (``export.local_entries``), and
of the view ``entries``, which runs its statements on shards (``live_entries.sharded_plan``).
Replay is sequential, but an entry depends only on jobs that share a key, a URI or a link (a *term*)
with it. From the facts of the records (``fastjournal.spark.live_entries.facts``):

1. ``jobs``: one row a job. A job is *gone* if its entry was made once, and a removal follows.
2. An entry that is not gone is *independent* where all others with one of its terms are gone, and
   each term tells one of two things: they had gone before its first record, or they came before it
   and are no newer, and it has no links and was not renamed. Replay of the others leaves nothing
   that it meets. So it is what its own records say. With no record but its first, it is *plain*:
   its columns are those of the record. Otherwise its own records are replayed.
3. The others are joined with all jobs that share terms with them, directly or by way of more: first
   a breadth-first search, then connected components by large-star and small-star rounds (Kiveris et
   al., 2014). Each round is one statement. After the last one, components that are not complete
   become one.
4. In a component, jobs are left out that were gone before its first job came that is not, and that
   are not newer than any that stays: so a URI with a long history is no long replay.

``node``, the place of a job's first record, stands for the job.
"""

from __future__ import annotations

from typing import NamedTuple

from fastjournal.spark.decoding.rows import RecordKind
from fastjournal.spark.execution.duckdb_engine import DuckDb

HOPS_MAX = 16
"""Bound of the steps of the breadth-first search."""
ROUNDS_MAX = 64
"""Bound of the rounds of stars."""
_SIDES = "CROSS JOIN (VALUES (0), (1)) AS sides(side)"


class Wanted(NamedTuple):
    """Relations of the records that make the live entries."""

    plain: str
    """Column ``place``: records that are entries as they stand."""
    replayed: str
    """Columns ``place`` and ``label``: records to replay, those of one label together."""
    bases: str
    """Columns ``segment``, ``earlier`` and ``ahead``, for ``facts.serial_numbers``."""


def find_wanted(engine: DuckDb, facts: str) -> Wanted:
    """Return which records of a log make its live entries.

    Args:
        engine: Where to compute that.
        facts: Relation of ``facts.FACTS_SCHEMA``.
    """
    jobs, members = find_members(engine, facts, permissive=False)
    labels = _find_tangled(engine, members)
    kept = engine.store("kept", _KEPT, jobs=jobs, labels=labels)
    return Wanted(
        plain=engine.query(PLAIN, jobs=jobs, labels=labels),
        replayed=find_replayed(engine, facts, jobs, labels, kept),
        bases=engine.query(BASES, facts=facts),
    )


def find_members(engine: DuckDb, facts: str, *, permissive: bool) -> tuple[str, str]:
    """Return the relations of jobs, and of pairs of job and term.

    Args:
        engine: Where to compute that.
        facts: All facts of each of these jobs.
        permissive: Whether removals behind damage may be not applied.
    """
    jobs = engine.store("jobs", _JOBS, facts=facts)
    # a completion behind damage may concern an entry that its job alone does not name
    named = [
        RecordKind.LINK,
        RecordKind.RENAME,
        *([RecordKind.REMOVAL, RecordKind.DOUBTFUL] if permissive else []),
    ]
    kinds = ", ".join(str(int(kind)) for kind in named)
    further = engine.query(_FURTHER, facts=facts, jobs=jobs, named=kinds)
    # one that is not applied may be, by a later one that names its key
    ended = _NEVER if permissive else _ENDED
    return jobs, engine.store("members", _MEMBERS, jobs=jobs, further=further, ended=ended)


def find_replayed(engine: DuckDb, facts: str, jobs: str, labels: str, kept: str) -> str:
    """Return the relation of records to replay: ``place`` and ``label``.

    Args:
        engine: Where to compute that.
        facts: All facts of these jobs.
        jobs: From ``find_members``.
        labels: Column ``node``: jobs that others touch.
        kept: Columns ``high``, ``low`` and ``label``: those of them to replay.
    """
    own = engine.query(_OWN, jobs=jobs, labels=labels)
    return engine.query(_REPLAYED, facts=facts, kept=kept, own=own)


def _find_tangled(engine: DuckDb, members: str) -> str:
    """Return node and label of the tangled jobs: those of one component have the same label."""
    found = engine.store("tangled_0", _TANGLED, members=members)
    if engine.is_empty(found):
        # all entries are independent: there is nothing to walk from, and no component
        return engine.store("labels", _NO_LABELS, tangled=found)
    return find_labels(engine, members, _walk(engine, members, found))


def _walk(engine: DuckDb, members: str, found: str) -> str:
    """Return the nodes of all jobs that are connected with those found: breadth-first search."""
    before = found
    for step in range(HOPS_MAX):
        terms = engine.store(f"hop_terms_{step}", _TERMS, members=members, nodes=before)
        reached = engine.store(f"hop_{step}", _REACHED, members=members, terms=terms)
        new = engine.store(f"hop_new_{step}", _NEW, reached=reached, found=found)
        if engine.is_empty(new):
            return found
        found = engine.store(f"tangled_{step + 1}", _UNION, one=found, other=new)
        before = new
    # too far to walk: all jobs, by components
    return engine.store("tangled", _REST, found=found, new=before, members=members)


def find_labels(engine: DuckDb, members: str, tangled: str) -> str:
    """Return node and label of connected jobs: those of one component have the same label."""
    pairs = engine.store("pairs", _PAIRS, members=members, tangled=tangled)
    pairs = join_pairs(engine, pairs)
    incomplete = engine.query(_INCOMPLETE, pairs=pairs)
    return engine.store("labels", _LABELS, tangled=tangled, pairs=pairs, incomplete=incomplete)


def join_pairs(engine: DuckDb, pairs: str) -> str:
    """Return pairs in which ``m`` is the least node of the component of ``v``.

    Args:
        engine: Where to compute that.
        pairs: Columns ``v`` and ``m``, both of one component; ``m`` is the lesser one.
    """
    for step in range(ROUNDS_MAX):
        near = engine.query(NEIGHBOURS, pairs=pairs)
        large = engine.store(f"large_{step}", LARGE_STAR, near=near)
        pairs = engine.store(f"small_{step}", SMALL_STAR, pairs=large)
        if engine.is_empty(engine.query(_INCOMPLETE, pairs=pairs)):
            break
    return pairs


_IS_ENTRY = f"kind <= {RecordKind.LINKED:d}"
_JOBS = f"""
SELECT high, low, min(place) AS node,
    count(CASE WHEN {_IS_ENTRY} THEN 1 END) AS entries,
    max(CASE WHEN {_IS_ENTRY} THEN kind END) AS form,
    max(CASE WHEN {_IS_ENTRY} THEN place END) AS added,
    max(CASE WHEN {_IS_ENTRY} THEN timestamp END) AS timestamp,
    max(CASE WHEN {_IS_ENTRY} THEN key END) AS key,
    max(CASE WHEN {_IS_ENTRY} THEN uri END) AS uri,
    count(CASE WHEN kind > {RecordKind.REMOVAL:d} THEN 1 END) AS changes,
    count(CASE WHEN kind > {RecordKind.CHANGE:d} THEN 1 END) AS ties,
    count(CASE WHEN kind > {RecordKind.CHANGE:d} AND kind <> {RecordKind.LINK:d}
        THEN 1 END) AS moves,
    max(CASE WHEN kind = {RecordKind.REMOVAL:d} THEN place END) AS removed
FROM {{facts}}
WHERE kind <= {RecordKind.DOUBTFUL:d}
GROUP BY high, low
"""
GONE = "(entries <= 1 AND moves = 0 AND (entries = 0 OR coalesce(removed > added, FALSE)))"
_FURTHER = f"""
SELECT high, low, unnest(terms) AS term FROM (
    SELECT f.high, f.low,
        CASE WHEN f.links IS NULL THEN list_value(f.key, f.uri)
        ELSE f.links END AS terms
    FROM {{facts}} AS f LEFT JOIN (SELECT high, low FROM {{jobs}} WHERE entries > 1) AS j
        ON f.high = j.high AND f.low = j.low
    WHERE f.kind IN ({{named}}) OR ({_IS_ENTRY} AND (f.links IS NOT NULL OR j.high IS NOT NULL))
) AS found
"""
_ENDED = "CASE WHEN entries = 1 THEN removed END"
_NEVER = "CAST(9223372036854775807 AS BIGINT)"
_ROW = f"""node, added, timestamp, {GONE} AS gone, {{ended}} AS ended,
    (entries > 1 OR ties > 0 OR form = {RecordKind.LINKED:d}) AS strict"""
_MEMBERS = f"""
SELECT * FROM (
    SELECT unnest(list_value(key, uri)) AS term, {_ROW} FROM {{jobs}} WHERE entries >= 1
    UNION ALL
    SELECT f.term, {_ROW} FROM {{jobs}} AS j JOIN {{further}} AS f
        ON j.high = f.high AND j.low = f.low
) AS found
WHERE term IS NOT NULL
"""
"""Pairs of job and term. A job is ``strict`` if it may meet others after it was added; ``ended``:
behind this place one that is gone meets no other; null: it never did."""

TERM_FACTS = {
    "first_live": "min(CASE WHEN NOT gone THEN node END)",
    "last_live": "max(CASE WHEN NOT gone THEN node END)",
    "first_node": "min(node)",
    "last_node": "max(node)",
    "is_strict": "max(CASE WHEN NOT gone AND strict THEN 1 ELSE 0 END)",
    "newest": "max(added)",
    "live_newest": "max(CASE WHEN NOT gone THEN added END)",
    "latest": "max(timestamp)",
    "live_latest": "max(CASE WHEN NOT gone THEN timestamp END)",
    "last_ended": "max(CASE WHEN gone THEN ended END)",
}
"""Aggregates of the members with one term, which tell whether its live job is independent."""
IS_BAD = """({first_live} <> {last_live} OR ({first_node} <> {last_node}
    AND coalesce({last_ended} > {first_live}, FALSE)
    AND ({is_strict} = 1 OR {newest} > {live_newest} OR {latest} > {live_latest})))"""
_TANGLED = f"""
SELECT DISTINCT m.node FROM {{members}} AS m JOIN (
    SELECT term FROM {{members}} GROUP BY term HAVING {IS_BAD.format(**TERM_FACTS)}
) AS bad ON m.term = bad.term
WHERE NOT m.gone
"""
_NO_LABELS = "SELECT node, min(node) AS label FROM {tangled} GROUP BY node"
_TERMS = "SELECT DISTINCT m.term FROM {members} AS m JOIN {nodes} AS n ON m.node = n.node"
_REACHED = "SELECT DISTINCT m.node FROM {members} AS m JOIN {terms} AS t ON m.term = t.term"
_NEW = "SELECT r.node FROM {reached} AS r ANTI JOIN {found} AS f ON r.node = f.node"
_UNION = "SELECT node FROM {one} UNION ALL SELECT node FROM {other}"
_REST = """
SELECT node FROM {found}
UNION
SELECT node FROM {members} WHERE EXISTS (SELECT 1 FROM {new})
"""
_PAIRS = """
SELECT DISTINCT node AS v, m FROM (
    SELECT m.node, min(m.node) OVER (PARTITION BY m.term) AS m
    FROM {members} AS m JOIN {tangled} AS t ON m.node = t.node
) AS found
WHERE node <> m
"""
NEIGHBOURS = f"""
SELECT CASE WHEN side = 0 THEN v ELSE m END AS u, CASE WHEN side = 0 THEN m ELSE v END AS w
FROM {{pairs}} {_SIDES}
"""
LARGE_STAR = """
SELECT DISTINCT w AS v, m FROM (
    SELECT u, w, least(u, min(w) OVER (PARTITION BY u)) AS m FROM {near} AS neighbours
) AS stars
WHERE w > u
"""
SMALL_STAR = f"""
SELECT DISTINCT v, least_m AS m FROM (
    SELECT CASE WHEN side = 0 THEN v ELSE m END AS v, least_m FROM (
        SELECT v, m, min(m) OVER (PARTITION BY v) AS least_m FROM {{pairs}}
    ) AS stars {_SIDES}
) AS found
WHERE v <> least_m
"""
_INCOMPLETE = """
SELECT 1 AS incomplete FROM {pairs} AS p JOIN {pairs} AS q ON p.m = q.v
UNION ALL
SELECT 1 AS incomplete FROM {pairs} GROUP BY v HAVING count(*) > 1
"""
_LABELS = """
SELECT t.node,
    CASE WHEN max(i.number) > 0 THEN 0 ELSE min(coalesce(p.m, t.node)) END AS label
FROM {tangled} AS t LEFT JOIN {pairs} AS p ON t.node = p.v
    CROSS JOIN (SELECT count(*) AS number FROM {incomplete}) AS i
GROUP BY t.node
"""
_KEPT = f"""
SELECT high, low, label FROM (
    SELECT flagged.*, min(CASE WHEN stays THEN timestamp END) OVER (PARTITION BY label) AS oldest
    FROM (
        SELECT starts.*, NOT coalesce(gone AND removed < start, FALSE) AS stays FROM (
            SELECT j.high, j.low, l.label, j.timestamp, j.removed, {GONE} AS gone,
                min(CASE WHEN NOT {GONE} THEN j.added END) OVER (PARTITION BY l.label) AS start
            FROM {{jobs}} AS j JOIN {{labels}} AS l ON j.node = l.node
        ) AS starts
    ) AS flagged
) AS bounded
WHERE stays OR coalesce(timestamp > oldest, FALSE)
"""
_STANDS = f"(j.entries = 1 AND j.form <> {RecordKind.FOREIGN:d} AND j.changes = 0)"
PLAIN = f"""
SELECT j.added AS place FROM {{jobs}} AS j ANTI JOIN {{labels}} AS l ON j.node = l.node
WHERE {_STANDS} AND NOT {GONE}
"""
_OWN = f"""
SELECT j.high, j.low, j.node AS label
FROM {{jobs}} AS j ANTI JOIN {{labels}} AS l ON j.node = l.node
WHERE j.entries >= 1 AND NOT {_STANDS} AND NOT {GONE}
"""
_REPLAYED = f"""
SELECT f.place, k.label FROM {{facts}} AS f JOIN (
    SELECT high, low, label FROM {{kept}} UNION ALL SELECT high, low, label FROM {{own}}
) AS k ON f.high = k.high AND f.low = k.low
WHERE f.kind <= {RecordKind.DOUBTFUL:d}
"""
BASES = f"""
SELECT segment, earlier, coalesce(max(led - earlier) OVER (
        ORDER BY segment ROWS BETWEEN UNBOUNDED PRECEDING AND 1 PRECEDING), 0) AS ahead
FROM (
    SELECT place AS segment, timestamp AS led, coalesce(CAST(sum(key) OVER (
        ORDER BY place ROWS BETWEEN UNBOUNDED PRECEDING AND 1 PRECEDING) AS BIGINT), 0) AS earlier
    FROM {{facts}} WHERE kind = {RecordKind.SEGMENT:d}
) AS segments
"""
