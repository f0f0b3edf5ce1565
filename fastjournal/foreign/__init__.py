"""Journals of other queues, as items that a daemon can import.

A reader opens the journals of one queue as a ``ForeignJournal`` (``items``), independent of the
format of its files. An import needs nothing else. ``formats`` recognises the format of a directory.
"""

from __future__ import annotations

from fastjournal.foreign.beanstalkd import open_beanstalkd
from fastjournal.foreign.items import Fault, ForeignJournal, Item
from fastjournal.foreign.kestrel import open_kestrel
from fastjournal.foreign.workq import open_workq

__all__ = ["Fault", "ForeignJournal", "Item", "open_beanstalkd", "open_kestrel", "open_workq"]
