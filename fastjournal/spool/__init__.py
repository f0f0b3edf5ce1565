"""Spool (store and forward): local files that take a program's requests, so that none is lost.

``Spool`` appends; the forwarder (``fj-forwarder``) sends what is there and erases it. To look into
one: ``spool_status``, ``list_slots`` and ``SlotReader``, ``DeadDirectory`` for what cannot be sent,
``read_forwarder_status`` for what the forwarder does.

appending, bulk, drop_in     append of one record, of many, of a whole file
reading, status, dead        records of a slot; figures of a spool; dead letters
format, slots, shifted_checksums   bytes and names of the files
wake, inotify, inotify_watch, forwarder_status   the forwarder: how it is woken, what it does
"""

from fastjournal.spool.appending.spool_writer import Spool
from fastjournal.spool.dead import DeadDirectory, DeadPiece
from fastjournal.spool.dead import DeadReason as Reason
from fastjournal.spool.forwarder_status import ForwarderStatus, read_forwarder_status
from fastjournal.spool.inotify_watch import SpoolWatch, watch
from fastjournal.spool.reading.slot_reader import SlotReader
from fastjournal.spool.reading.slot_window import Piece
from fastjournal.spool.reading.slot_window import PieceKind as Kind
from fastjournal.spool.slots import Slot, list_slots
from fastjournal.spool.status import SlotStatus, SpoolStatus, UnreadableSlot, spool_status

__all__ = [
    "DeadDirectory",
    "DeadPiece",
    "ForwarderStatus",
    "Kind",
    "Piece",
    "Reason",
    "Slot",
    "SlotReader",
    "SlotStatus",
    "Spool",
    "SpoolStatus",
    "SpoolWatch",
    "UnreadableSlot",
    "list_slots",
    "read_forwarder_status",
    "spool_status",
    "watch",
]
