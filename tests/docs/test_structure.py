"""Structure of the code: files that a request enters, cycles, long functions, words to be found.

The measures that read the glossary see a term that leads nowhere.
"""

from __future__ import annotations

import pytest

from tests.bench import glossary
from tests.bench.bench_structure import MEASURES


@pytest.mark.parametrize("name", MEASURES)
@pytest.mark.xdist_group("structure")
def test_structure_keeps_to_its_limit(name: str) -> None:
    measure = MEASURES[name]
    findings = measure.findings()
    assert measure.holds(len(findings)), "\n".join([f"{name}: {len(findings)}", *findings])


ROW = (
    "| term | also | meaning | where |\n| --- | --- | --- | --- |\n| {names} | | ... | {where} |\n"
)


@pytest.mark.parametrize(
    ("names", "where", "missing"),
    [
        ("write-ahead log, WAL", "`wal/`, `fastjournal/cmdlog/`", []),
        ("runbook", "[runbooks.md](runbooks.md)", []),
        ("segment: active, sealed", "`cmdlog/format/segments.py`", []),
        ("flushed position", "`cmdlog/writer.py`", ["flushed position: cmdlog/writer.py"]),
        ("tombstone, gravestone", "`tables/tombstones.py`", ["gravestone: tables/tombstones.py"]),
        ("compaction", "`tables/no_such_file.py`", ["compaction: tables/no_such_file.py"]),
        ("compaction", "everywhere", ["compaction: no place"]),
    ],
)
def test_structure_of_the_glossary_leads_from_a_term_to_a_head(
    names: str, where: str, missing: list[str]
) -> None:
    page = f"\n## Glossary\n\n{ROW.format(names=names, where=where)}"
    found = glossary.terms_without_place(page)
    assert [line for line in found if "docs/decisions" not in line] == missing


def test_structure_of_the_glossary_is_alphabetical() -> None:
    page = glossary.ARCHITECTURE.read_text(encoding="utf-8").partition("\n## Glossary\n")[2]
    rows = [line.split("|")[1].strip().lower() for line in page.splitlines() if "|" in line][2:]
    assert len(rows) > 60
    assert rows == sorted(rows)
