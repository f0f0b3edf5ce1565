"""Geometry of the charts: figures become coordinates, which the template draws as SVG. Pure."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

import msgspec

WIDTH = 360.0
HEIGHT = 170.0
LEFT = 46.0
RIGHT = 8.0
TOP = 10.0
BOTTOM = 22.0
LABELS = 6
PEAKS = 0.1
"""Share of the values of a line that may be cut, or a single peak would make all else flat."""
ABOVE_USUAL = 1.5
"""How many times as high as all but these peaks an axis is, before its end is a round number."""

_STEPS_S = (1, 2, 5, 10, 30, 60, 120, 300, 600, 1_800, 3_600, 7_200, 21_600, 43_200, 86_400)
"""Round durations, in seconds."""
_MARKS_S = {*_STEPS_S, 0.5, 15, 900, 10_800}
"""Distances between the marks of an axis of durations, in seconds."""
_DAY_S = 86_400

Format = Callable[[float], str]


class Tick(msgspec.Struct):
    """Mark of an axis, with its text."""

    at: float
    text: str


class Series(msgspec.Struct):
    """Values of a line; None interrupts it."""

    name: str
    values: Sequence[float | None]
    style: str
    """Class of the line in the style sheet."""


class ChartLine(msgspec.Struct):
    """Line as a path of SVG, and its single points."""

    name: str
    path: str
    style: str
    points: list[tuple[float, float, str]]
    """Coordinates and text of each value."""


class Bar(msgspec.Struct):
    """Bar, and its text."""

    x: float
    y: float
    width: float
    height: float
    text: str
    style: str = "bar"


class Chart(msgspec.Struct):
    """Chart with axes."""

    title: str
    lines: list[ChartLine]
    bars: list[Bar]
    rows: list[Tick]
    columns: list[Tick]
    note: str
    """Sentence under it, or nothing."""
    width: float = WIDTH
    height: float = HEIGHT
    left: float = LEFT
    right: float = WIDTH - RIGHT
    top: float = TOP
    bottom: float = HEIGHT - BOTTOM


def round_top(value: float) -> float:
    """Return the next round number from a value on: 1, 2 or 5 with zeros."""
    if value <= 0:
        return 1.0
    power = 10.0 ** math.floor(math.log10(value))
    return next(step * power for step in (1, 2, 5, 10) if step * power >= value * 0.999999)


def round_count(value: float) -> float:
    """Return the next round number from a value on that five marks divide into whole numbers."""
    return max(round_top(value), 5.0)


def round_duration(us: float) -> float:
    """Return the next round duration, in microseconds, from one on."""
    seconds = us / 1_000_000
    if seconds <= _STEPS_S[0]:
        return round_top(us)
    if seconds > _DAY_S:
        days = math.ceil(seconds / _DAY_S)
        return (days if days <= 5 else round_top(days)) * _DAY_S * 1e6
    return next(step for step in _STEPS_S if step >= seconds) * 1e6


def marks_of_duration(top_us: float) -> int:
    """Return into how many round parts an axis of durations is divided."""
    seconds = top_us / 1_000_000
    if seconds <= _STEPS_S[0] or seconds > 5 * _DAY_S:
        # 1, 2 or 5 with zeros
        return 5
    wanted = (4, 5, 3) if seconds <= _DAY_S else (5, 4, 3, 2)
    whole = (n for n in wanted if seconds / n in _MARKS_S)
    return next(whole)


def chart(
    title: str,
    series: Sequence[Series],
    labels: Sequence[str],
    *,
    format: Format,
    mark: Format | None = None,
    top: Callable[[float], float] = round_count,
    marks: Callable[[float], int] = lambda _: 5,
    bars: Sequence[float] | None = None,
    bars_name: str = "",
) -> Chart:
    """Return a chart of lines, over bars where there are any.

    Over bars, high peaks of the lines are cut, and a note says so: the bars are the subject.

    Args:
        title: Title.
        series: Lines, each as long as the labels.
        labels: Texts of the columns.
        format: Text of a value.
        mark: Short text of a value, at the axis; None: the same.
        top: Gives a round number, from the largest value on, at which the axis ends.
        marks: Gives the number of parts into which its marks divide that axis.
        bars: A value for each column.
        bars_name: Name of the bars.
    """
    values = [value for one in series for value in one.values if value is not None]
    most = max([*values, *(bars or [])], default=0.0)
    highest, note = top(most), ""
    if bars is not None:
        usual = max([*bars, *(_without_peaks(one) for one in series)], default=0.0)
        if (cut := top(ABOVE_USUAL * usual)) < highest:
            highest = cut
            note = f"Peaks above {format(cut)} are cut; the highest is {format(most)}."
    ticks = marks(highest)
    step = (WIDTH - LEFT - RIGHT) / max(len(labels), 1)

    def y(value: float) -> float:
        share = min(value / highest, 1)
        return round(HEIGHT - BOTTOM - share * (HEIGHT - BOTTOM - TOP), 1)

    def x(at: int) -> float:
        return round(LEFT + (at + 0.5) * step, 1)

    drawn = [
        Bar(
            round(x(at) - step * 0.4, 1),
            y(value),
            round(step * 0.8, 2),
            round(HEIGHT - BOTTOM - y(value), 1),
            f"{labels[at]}: {format(value)} {bars_name}".strip(),
        )
        for at, value in enumerate(bars or [])
        if value
    ]
    every = max(math.ceil(len(labels) / LABELS), 1)
    return Chart(
        title,
        [_line(one, labels, x, y, format) for one in series],
        drawn,
        [
            Tick(y(highest * n / ticks), (mark or format)(highest * n / ticks))
            for n in range(ticks + 1)
        ],
        [Tick(x(at), labels[at]) for at in range(0, len(labels), every)],
        note,
    )


def _without_peaks(series: Series) -> float:
    """Return the highest value of a line without its peaks."""
    known = sorted(value for value in series.values if value is not None)
    return known[math.ceil(len(known) * (1 - PEAKS)) - 1] if known else 0.0


def _line(
    series: Series,
    labels: Sequence[str],
    x: Callable[[int], float],
    y: Callable[[float], float],
    format: Format,
) -> ChartLine:
    parts, points, drawing = list[str](), list[tuple[float, float, str]](), False
    for at, value in enumerate(series.values):
        if value is None:
            drawing = False
            continue
        parts.append(f"{'L' if drawing else 'M'}{x(at)} {y(value)}")
        points.append((x(at), y(value), f"{labels[at]}: {format(value)} {series.name}"))
        drawing = True
    return ChartLine(series.name, " ".join(parts), series.style, points)


class Cell(msgspec.Struct):
    """Cell of a heat map."""

    x: float
    y: float
    text: str
    opacity: float


class HeatMap(msgspec.Struct):
    """Heat map: a row a name, a column an hour. Darker is more, on a logarithmic scale."""

    names: list[Tick]
    columns: list[Tick]
    cells: list[Cell]
    width: float
    height: float
    cell_width: float
    cell_height: float


def heat_map(
    rows: Sequence[tuple[str, Sequence[float | None]]], *, format: Format, lowest: float = 1.0
) -> HeatMap:
    """Return a heat map of 24 hours.

    Args:
        rows: Name and a value for each hour; None: nothing happened.
        format: Text of a value.
        lowest: Value up to which a cell is lightest.
    """
    left, top, cell_width, cell_height = 92.0, 6.0, 10.8, 16.0
    known = [value for _, values in rows for value in values if value is not None]
    highest = max([*known, lowest * 10])
    scale = math.log(highest / lowest)
    cells, names = list[Cell](), list[Tick]()
    for number, (name, values) in enumerate(rows):
        y = top + number * cell_height
        names.append(Tick(round(y + cell_height * 0.7, 1), name))
        for hour, value in enumerate(values):
            if value is not None:
                share = math.log(max(value, lowest) / lowest) / scale
                text = f"{name} {hour:02}:00: {format(value)}"
                x = round(left + hour * cell_width, 1)
                cells.append(Cell(x, y, text, round(0.08 + 0.92 * share, 3)))
    columns = [Tick(left + (hour + 0.5) * cell_width, f"{hour:02}") for hour in range(0, 24, 3)]
    height = top + len(rows) * cell_height + 16
    return HeatMap(names, columns, cells, WIDTH, height, cell_width - 1, cell_height - 1)


class Strip(msgspec.Struct):
    """Strip of time: covered spans and gaps."""

    bars: list[Bar]
    columns: list[Tick]
    width: float = WIDTH
    height: float = 40.0


def strip(
    spans: Sequence[tuple[float, float, str, str]],
    first: float,
    last: float,
    labels: Sequence[tuple[float, str]],
) -> Strip:
    """Return a strip of spans.

    Args:
        spans: Begin, end, class in the style sheet, and text of each.
        first: Begin of the strip.
        last: End of it.
        labels: Places between begin and end, with their texts.
    """
    scale = (WIDTH - 16) / max(last - first, 1)

    def x(value: float) -> float:
        return round(8 + (min(max(value, first), last) - first) * scale, 1)

    bars = [
        Bar(x(begin), 4, max(round(x(end) - x(begin), 1), 1.5), 16, text, style)
        for begin, end, style, text in spans
        if end >= first and begin <= last
    ]
    return Strip(bars, [Tick(x(at), text) for at, text in labels])
