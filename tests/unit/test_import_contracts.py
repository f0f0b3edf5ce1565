"""The layers of the design, as pyproject.toml writes them down, and what an import loads."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]


def test_no_module_imports_what_its_layer_must_not_know() -> None:
    lint_imports = Path(sys.executable).with_name("lint-imports")
    done = subprocess.run(
        [str(lint_imports), "--no-cache"], cwd=ROOT, capture_output=True, text=True, check=False
    )

    assert done.returncode == 0, done.stdout + done.stderr


def test_importing_the_library_loads_neither_trio_nor_spark() -> None:
    code = "import sys, fastjournal; print(*sorted(name.partition('.')[0] for name in sys.modules))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)

    assert not {"trio", "pyspark", "pyarrow", "pandas", "numpy"} & set(done.stdout.split())
