"""Options of the data source: one table of names, allowed values, and views where each counts.

Spark hands options over as texts, with names in any case. An unknown name or value is an error that
names the nearest known one. A new option or view is a line in the tables here.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from difflib import get_close_matches
from typing import NamedTuple

from fastjournal.errors import BadRequestError
from fastjournal.foreign.formats import Format

LOG_VIEWS = ("records", "entries")
VIEWS = (*LOG_VIEWS, "events", "spool")
STREAM_VIEWS = ("records", "events")
MODES = ("failfast", "permissive")
PARTITION_BYTES = 64 * 1024 * 1024
"""A segment of usual size is one partition: cmdlog-seg-size is no larger."""
SIZE_MAX = 2**63 - 1
"""Most that Spark takes for a number of bytes."""
RANGE_OPTIONS = ("segments", "domain", "since", "until")
"""Options that leave out records of a log (``query.record_range``)."""
FOREIGN_JOURNALS = (Format.BEANSTALKD, Format.KESTREL)


_SIZE = re.compile(r"([0-9]+)\s*(?:([kmgt])i?)?b?", re.IGNORECASE)
_UNITS = {"": 1, "k": 1 << 10, "m": 1 << 20, "g": 1 << 30, "t": 1 << 40}
"""Factors of Spark's own texts of sizes."""


class Option(NamedTuple):
    """One option of the data source."""

    name: str
    values: tuple[str, ...] = ()
    """Allowed values, the default first; empty: any text."""
    views: tuple[str, ...] = ()
    """Views where it counts; empty: all."""
    is_size: bool = False
    """Its value is a number of bytes."""


OPTIONS = (
    Option("path"),
    Option("paths"),
    Option("view", VIEWS),
    Option("journal", tuple(Format), views=LOG_VIEWS),
    Option("mode", MODES),
    Option("columnNameOfCorruptRecord"),
    Option("instants", ("timestamp", "us")),
    Option("maxBytesPerTrigger", views=STREAM_VIEWS, is_size=True),
    Option("cleanSource", ("off", "delete"), views=STREAM_VIEWS),
    Option("maxPartitionBytes", views=("records",), is_size=True),
    *(Option(name, views=("records",)) for name in RANGE_OPTIONS),
)

_BY_NAME = {option.name.lower(): option for option in OPTIONS}
_TABLE_MARK = "provider"
"""Only the properties of a table of SQL name it."""
_TABLE_PREFIX = "option."
"""Spark marks the options of a table so; its other properties belong to the catalog."""


class Options:
    """Checked options of one load, table or stream.

    Args:
        given: Names and values, as Spark hands them over.

    Raises:
        BadRequestError: One is unknown, has an unknown value, or is for another view.
    """

    def __init__(self, given: Mapping[str, str]) -> None:
        found = {name.lower(): value for name, value in given.items()}
        self.is_table = _TABLE_MARK in found
        if self.is_table:
            prefixed = [name for name in found if name.startswith(_TABLE_PREFIX)]
            names = {name.removeprefix(_TABLE_PREFIX) for name in prefixed} | {"path"}
            found = {name: value for name, value in found.items() if name in names}
        self.given = found
        """Values by name in lower case."""
        for name, value in found.items():
            option = _BY_NAME.get(name)
            if option is None:
                raise _unknown_option(name)
            if option.values and value.lower() not in option.values:
                raise BadRequestError(
                    f"option {option.name}={value} is not one of {', '.join(option.values)}",
                    hint=near(value, option.values),
                )
            if option.is_size:
                _bytes_of(option.name, value)
        for name in found:
            option = _BY_NAME[name]
            if option.views and self.view not in option.views:
                raise BadRequestError(
                    f"option {option.name} is not for the view {self.view}",
                    hint=f"it counts in the view {' and '.join(option.views)}",
                )

    def text(self, name: str) -> str | None:
        """Return the text of an option; None: it is not given."""
        return self.given.get(name.lower())

    def choice(self, name: str) -> str:
        """Return the value of an option that has allowed values, or its default."""
        return self.given.get(name.lower(), _BY_NAME[name.lower()].values[0]).lower()

    @property
    def view(self) -> str:
        """Name of the view."""
        return self.choice("view")

    @property
    def permissive(self) -> bool:
        """Whether damage becomes a row."""
        return self.choice("mode") == "permissive"

    @property
    def corrupt_column(self) -> str:
        """Name of the column of damage."""
        return self.text("columnNameOfCorruptRecord") or "_corrupt"

    @property
    def instants_us(self) -> bool:
        """Whether instants are numbers of microseconds."""
        return self.choice("instants") == "us"

    @property
    def bytes_per_trigger(self) -> int | None:
        """Most bytes of a batch of a stream; None: no bound."""
        return self._bytes("maxBytesPerTrigger")

    @property
    def bytes_per_partition(self) -> int:
        """Bytes of a segment for each partition of the view ``records``, about."""
        return self._bytes("maxPartitionBytes") or PARTITION_BYTES

    def _bytes(self, name: str) -> int | None:
        text = self.text(name)
        return None if text is None else _bytes_of(name, text)

    @property
    def cleans(self) -> bool:
        """Whether a stream unlinks archived segments that it has read."""
        return self.choice("cleanSource") == "delete"

    @property
    def journal(self) -> Format | None:
        """Format that is asked for; None: a log of fastjournald, or of workq."""
        return None if "journal" not in self.given else Format(self.choice("journal"))

    @property
    def foreign(self) -> Format | None:
        """Format of a journal that is no log of segments; None: it is one."""
        return self.journal if self.journal in FOREIGN_JOURNALS else None


def _bytes_of(name: str, text: str) -> int:
    """Return the size that an option names."""
    match = _SIZE.fullmatch(text.strip())
    size = int(match[1]) * _UNITS[(match[2] or "").lower()] if match else 0
    if not 0 < size <= SIZE_MAX:
        raise BadRequestError(
            f"option {name}={text} is not a number of bytes, as 67108864, or with a unit, as 64m",
            hint="the units are k, m, g and t, and their long forms, such as KiB and kb: powers "
            "of 1,024",
        )
    return size


def near(word: str, known: Sequence[str]) -> str | None:
    """Return a hint that names the known word nearest to one; None: none is near."""
    found = get_close_matches(word.lower(), [one.lower() for one in known], 1, 0.6)
    if not found:
        return None
    return f"did you mean {next(one for one in known if one.lower() == found[0])}?"


def _unknown_option(name: str) -> BadRequestError:
    names = [option.name for option in OPTIONS if option.name != "paths"]
    return BadRequestError(
        f"there is no option {name}; the options are {', '.join(names)}", hint=near(name, names)
    )
