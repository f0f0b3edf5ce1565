"""Nightly run (``fj-nightly``): snapshot, history, analysis tables, report, and what is pruned.

fj_nightly, preparation, run   the command, its inputs, the order of the work
analysis_jobs, day_store       tables of each day, and where they are kept
report                         figures and page of one day
"""

from __future__ import annotations

from fastjournal.spark.nightly.fj_nightly import command, main

__all__ = ["command", "main"]
