"""Journals of beanstalkd and Kestrel for ``fj-cli log``: dump and verify."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

from fastjournal.disk import Disk
from fastjournal.foreign.beanstalkd import BeanstalkdJournal, beanstalkd_records
from fastjournal.foreign.formats import Format
from fastjournal.foreign.items import Fault, ForeignRecord
from fastjournal.foreign.journal_files import find_size
from fastjournal.foreign.journal_stat import journal_files
from fastjournal.foreign.kestrel import KestrelJournal, kestrel_records
from fastjournal.limits import VALUE_BYTES_MAX
from fj_cli.output import (
    bytes_field,
    counted,
    finding_fields,
    note,
    show_bytes,
    write_findings,
    write_json,
    write_line,
)
from fj_cli.progress import ProgressBar
from fj_cli.shared_options import DONE, REFUSED

_VALUE_CHARACTERS = 60
_RECORDS: dict[Format, Callable[..., Iterator[ForeignRecord]]] = {
    Format.BEANSTALKD: beanstalkd_records,
    Format.KESTREL: kestrel_records,
}
_JOURNALS = {Format.BEANSTALKD: BeanstalkdJournal, Format.KESTREL: KestrelJournal}
_ADVICE = {
    "torn": "nothing: {} leaves these bytes out (while it runs here: a write is on its way)",
    "damaged": "restore the file; {} and fj-cli import leave out the rest of it",
}


def dump_foreign(disk: Disk, directory: str, format: Format, *, in_json: bool) -> int:
    """Write every record of a journal, one a line; return the exit code."""
    faults: list[Fault] = []
    with ProgressBar("reading", unit="bytes") as bar:
        records = _RECORDS[format](
            disk, directory, faults, bar.update, value_bytes_max=VALUE_BYTES_MAX
        )
        for record in records:
            name = record.path.removeprefix(f"{directory}/")
            if in_json:
                write_json(_json_fields(name, record))
            else:
                write_line(f"{name}:{record.offset:<9} {_words(record)}")
    for fault in faults:
        note(f"{fault.path} at offset {fault.offset}: {fault.message}")
    return REFUSED if faults else DONE


def verify_foreign(disk: Disk, directory: str, format: Format, as_json: bool | None) -> int:
    """Write every place of a journal that cannot be read; return the exit code."""
    with ProgressBar("verifying", unit="bytes") as bar:
        journal = _JOURNALS[format](disk, directory, on_progress=bar.update)
    found = [_finding(disk, fault, format) for fault in journal.faults]
    write_findings(found, as_json, "what to do")
    if found:
        note(f"{counted(len(found), 'finding')} in {directory}")
        return REFUSED
    files = counted(len(journal_files(disk, directory, format)), "file")
    note(f"{directory} is whole: {format}, {files}, {counted(journal.count, 'live job')}")
    return DONE


def _finding(disk: Disk, fault: Fault, format: Format) -> dict[str, Any]:
    kind = "damaged" if fault.damage else "torn"
    size = (find_size(disk, fault.path) or 0) - fault.offset
    fields = finding_fields(kind, fault.path, fault.offset, size, fault.message)
    return fields | {"advice": _ADVICE[kind].format(format)}


def _json_fields(name: str, record: ForeignRecord) -> dict[str, Any]:
    fields: dict[str, Any] = {"file": name, "offset": record.offset, "bytes": record.size}
    values = record.fields if record.value is None else record.fields | {"value": record.value}
    for key, value in values.items():
        fields |= bytes_field(key, value) if isinstance(value, bytes) else {key: value}
    return fields


def _words(record: ForeignRecord) -> str:
    words = [
        f"{key}={show_bytes(value) if isinstance(value, bytes) else value}"
        for key, value in record.fields.items()
    ]
    if record.value is not None:
        words.append(f"value={show_bytes(record.value, _VALUE_CHARACTERS)}")
    return " ".join(words)
