"""A progress bar on standard error, for what takes more than a second."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable
from typing import TYPE_CHECKING, Self

if TYPE_CHECKING:
    from rich.progress import Progress, ProgressColumn, TaskID

_PATIENCE_S = 1.0


class ProgressBar:
    """Shows nothing during the first second, and never where standard error is no terminal.

    Args:
        text: Name of the activity.
        unit: ``bytes`` are shown as such, anything else is counted.
        clock: Gives seconds that only go forward.
    """

    def __init__(
        self, text: str, *, unit: str = "", clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._text = text
        self._unit = unit
        self._clock = clock
        self._started = clock()
        self._progress: Progress | None = None
        self._task: TaskID | None = None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        if self._progress is not None:
            self._progress.stop()

    def update(self, done: int, total: int | None) -> None:
        """Show the progress; ``total`` is None if it is not known."""
        if self._progress is None:
            if not sys.stderr.isatty() or self._clock() - self._started < _PATIENCE_S:
                return
            self._progress = self._start(is_total_known=total is not None)
            self._task = self._progress.add_task(self._text, total=total)
        assert self._task is not None
        self._progress.update(self._task, completed=done, total=total)

    def _start(self, *, is_total_known: bool) -> Progress:
        from rich.console import Console  # noqa: PLC0415 - rich is slow to load
        from rich.progress import (  # noqa: PLC0415 - the same
            BarColumn,
            DownloadColumn,
            MofNCompleteColumn,
            Progress,
            TextColumn,
            TimeElapsedColumn,
            TimeRemainingColumn,
        )

        text = TextColumn("{task.description}")
        number = DownloadColumn() if self._unit == "bytes" else MofNCompleteColumn()
        columns: tuple[ProgressColumn, ...]
        if is_total_known:
            columns = (text, BarColumn(), number, TimeRemainingColumn())
        else:
            done = number if self._unit == "bytes" else TextColumn("{task.completed:,}")
            columns = (text, done, TimeElapsedColumn())
        progress = Progress(*columns, console=Console(stderr=True))
        progress.start()
        return progress
