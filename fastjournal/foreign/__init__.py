"""Journals of other queues, as items that a daemon can import.

items, formats   a ``ForeignJournal`` and its items; the format of a directory
beanstalkd, kestrel, kestrel_records, workq   reader and writer of one queue's files
journal_files, journal_stat           files of a journal; figures about it
journal_export, snapshot_entries      a snapshot as the journal of another queue

An import needs no other knowledge of the format.
"""

from __future__ import annotations

from fastjournal.foreign.beanstalkd import open_beanstalkd
from fastjournal.foreign.items import Fault, ForeignJournal, Item
from fastjournal.foreign.kestrel import open_kestrel
from fastjournal.foreign.workq import open_workq

__all__ = ["Fault", "ForeignJournal", "Item", "open_beanstalkd", "open_kestrel", "open_workq"]
