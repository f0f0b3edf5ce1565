"""Structure of the code: files that a request enters, cycles, long functions, words to be found."""

from __future__ import annotations

import pytest

from tests.bench.bench_structure import MEASURES


@pytest.mark.parametrize("name", MEASURES)
@pytest.mark.xdist_group("structure")
def test_structure_keeps_to_its_limit(name: str) -> None:
    measure = MEASURES[name]
    findings = measure.findings()
    assert measure.holds(len(findings)), "\n".join([f"{name}: {len(findings)}", *findings])
