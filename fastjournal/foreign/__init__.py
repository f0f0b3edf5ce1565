"""Journals of other queues, as items that a daemon can be given.

A reader opens the journal of one queue as a ``Journal`` (``items``), whatever its files look like;
who imports one knows nothing else of it. ``workq`` is the first.
"""

from __future__ import annotations

from fastjournal.foreign.items import Fault, Item, Journal
from fastjournal.foreign.workq import open_workq

__all__ = ["Fault", "Item", "Journal", "open_workq"]
