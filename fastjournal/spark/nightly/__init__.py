"""Nightly run (``fj-nightly``): snapshot, history, analysis tables, report, and what is pruned."""

from __future__ import annotations

from fastjournal.spark.nightly.fj_nightly import command, main

__all__ = ["command", "main"]
