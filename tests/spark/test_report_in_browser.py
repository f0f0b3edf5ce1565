"""The nightly report in a browser, where names are long, and on paper."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from fastjournal.spark.nightly.analysis_jobs import KINDS
from fastjournal.spark.nightly.report.diagnosis import diagnose
from fastjournal.spark.nightly.report.figures import Figures
from fastjournal.spark.nightly.report.report_page import render
from tests.integration.browser import CHROMIUM, Browser
from tests.spark.report_screenshots import LOOK, SCREENS
from tests.unit.test_spark_report import SECOND, build, hours_of, row

LONG = "a" * 5_000
PAPER_INCHES = {"A4": (8.27, 11.69), "letter": (8.5, 11.0)}
MARGIN_INCHES = 0.4
PIXELS_AN_INCH = 96
PRINTED = """
(() => {
  const box = element => element.getBoundingClientRect();
  const all = selector => [...document.querySelectorAll(selector)];
  const beyond = all("body *:not(svg *)").filter(one => box(one).right > innerWidth + 1);
  const hidden = all("body *:not(svg *)").filter(one => one.scrollWidth > one.clientWidth + 1
    && one.clientWidth && getComputedStyle(one).overflowX !== "visible");
  const breaks = all("figure, tr, .card, .slow").map(one => getComputedStyle(one).breakInside);
  return {
    needed: document.documentElement.scrollWidth,
    beyond: beyond.map(one => one.outerHTML.slice(0, 200)),
    hidden: hidden.map(one => one.outerHTML.slice(0, 200)),
    breaks: [...new Set(breaks)],
    height: document.documentElement.scrollHeight,
    figures: all("figure svg").map(one => box(one).height),
  };
})()
"""
"""Expression of JavaScript: what paper would cut."""

pytestmark = pytest.mark.skipif(
    CHROMIUM is None, reason="no chromium here: apt-get install chromium"
)


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    with Browser() as one:
        yield one


def slow_report(domain: str, path: Path) -> Path:
    """Write the report of a day on which a domain was slow, and starved."""
    figures: Figures = build(domain, run_p90_us=80 * SECOND, failed=30, set=600)
    # the widest texts of all columns
    counts = dict.fromkeys(KINDS, 12_345_678)
    long = {name: 4_000_000 * SECOND for name in row(None) if name.endswith("_us")}
    wide = row(domain, **counts | long)
    figures.hours = {day: dict.fromkeys(range(24), wide) for day in figures.hours}
    figures.domain_hours = {domain: dict.fromkeys(range(24), wide)}
    figures.attempts = [{"attempt": 1, **counts}]
    path.write_text(render(figures, diagnose(figures, hours_of)))
    return path


@pytest.mark.parametrize("domain", [LONG, "shop-0123456789" * 4, "crawl.example.org/" * 20])
def test_report_with_a_long_name_fits_its_screens(
    domain: str, browser: Browser, tmp_path: Path
) -> None:
    page = slow_report(domain, tmp_path / "report.html")
    for name, screen in SCREENS.items():
        browser.view(screen.width, screen.height, phone=screen.phone)
        browser.open(page.as_uri())
        seen = browser.evaluate(LOOK)
        assert (seen["width"], seen["needed"]) == (screen.width, screen.width), name
        assert (seen["beyond"], seen["wide"]) == ([], []), name
        assert [chart["cut"] for chart in seen["charts"]] == [[]] * len(seen["charts"]), name
        assert len(seen["slow"]) == 2, "the domain was slow, and starves"


@pytest.mark.parametrize("paper", PAPER_INCHES)
@pytest.mark.parametrize("domain", ["web", LONG])
def test_report_on_paper_is_cut_nowhere(
    domain: str, paper: str, browser: Browser, tmp_path: Path
) -> None:
    page = slow_report(domain, tmp_path / "report.html")
    width, height = (
        (inches - 2 * MARGIN_INCHES) * PIXELS_AN_INCH for inches in PAPER_INCHES[paper]
    )
    browser.view_print(int(width))
    browser.open(page.as_uri())
    seen = browser.evaluate(PRINTED)
    assert seen["needed"] == int(width)
    assert (seen["beyond"], seen["hidden"]) == ([], [])
    assert seen["breaks"] == ["avoid"], "no row and no chart is on two pages"
    assert max(seen["figures"]) < height
    browser.pdf(tmp_path / "p.pdf", inches=PAPER_INCHES[paper], margin_inches=MARGIN_INCHES)
    data = (tmp_path / "p.pdf").read_bytes()
    pages = len(re.findall(rb"/Type\s*/Page\b(?!s)", data))
    # what stays whole leaves a part of pages free
    assert seen["height"] / height <= pages <= 2 * seen["height"] / height + 1
