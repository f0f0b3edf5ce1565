"""DuckDB as engine: its bound of memory."""

from __future__ import annotations

from pathlib import Path

from fastjournal.spark.execution.duckdb_engine import MEMORY_MIB, DuckDb


def test_lookups_have_less_memory_and_see_all_rows(tmp_path: Path) -> None:
    engine = DuckDb(tmp_path)
    limits = "SELECT current_setting('memory_limit') AS memory"
    whole = engine.table(limits).column("memory")[0].as_py()
    assert whole == f"{MEMORY_MIB}.0 MiB"
    name = engine.store("numbers", "SELECT range AS place FROM range(300000)")

    with engine.lookups_only():
        assert engine.table(limits).column("memory")[0].as_py() == "96.0 MiB"
        found = engine.table(f"SELECT place FROM {name} WHERE place >= 299998 ORDER BY place")
        assert found.column("place").to_pylist() == [299998, 299999]

    assert engine.table(limits).column("memory")[0].as_py() == whole


def test_engine_has_no_write_ahead_log_of_its_scratch_files(tmp_path: Path) -> None:
    engine = DuckDb(tmp_path)
    for number in range(3):
        engine.store(f"t{number}", "SELECT * FROM range(1000)")
        assert [path.name for path in tmp_path.iterdir()] == ["tables.duckdb"]
    assert engine.table("SELECT count(*) AS n FROM t2").to_pylist() == [{"n": 1000}]
    engine.connection.close()
