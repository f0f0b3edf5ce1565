"""The layers of the design, as pyproject.toml writes them down."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

from tests.bench.source_measures import ROOT, contracts

MAPPED = {
    "Layers of the daemon": "fastjournald",
    "Spark: `fastjournal/spark/`": "fastjournal.spark",
}
"""Headings of docs/architecture.md under which the layers of a package stand."""


def test_layer_contracts_are_kept_by_all_modules() -> None:
    lint_imports = Path(sys.executable).with_name("lint-imports")
    done = subprocess.run(
        [str(lint_imports), "--no-cache"], cwd=ROOT, capture_output=True, text=True, check=False
    )

    assert done.returncode == 0, done.stdout + done.stderr


@pytest.mark.parametrize("heading", MAPPED)
def test_layers_of_the_architecture_page_are_those_of_the_contract(heading: str) -> None:
    text = (ROOT / "docs/architecture.md").read_text(encoding="utf-8")
    block = text.partition(f" {heading}\n")[2].partition("```text\n")[2].partition("```")[0]
    shown = [re.split(r" {2,}", line)[0] for line in block.splitlines()]
    (layers,) = [
        contract["layers"]
        for contract in contracts()
        if contract.get("containers") == [MAPPED[heading]]
    ]
    assert shown == layers
