"""An operator in a real browser: who works on what, why a job waits, what fails most; and acts.

Selenium drives the browser that is installed, and brings none along.
"""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest
from selenium.webdriver import Chrome, ChromeOptions
from selenium.webdriver.chrome.service import Service
from selenium.webdriver.common.by import By
from selenium.webdriver.remote.webelement import WebElement
from selenium.webdriver.support.expected_conditions import staleness_of
from selenium.webdriver.support.select import Select
from selenium.webdriver.support.wait import WebDriverWait

from fastjournal.client import SyncClient
from tests.integration.browser import CHROMIUM
from tests.integration.daemon_process import START_S, DaemonProcess
from tests.integration.page_contents import http_address
from tests.integration.test_page_actions import OPTIONS, TOKENS, secret, states, write_tokens

CHROMEDRIVER = shutil.which("chromedriver")

pytestmark = [
    pytest.mark.skipif(
        CHROMIUM is None or CHROMEDRIVER is None,
        reason="no chromium or chromedriver here: apt-get install chromium chromium-driver",
    ),
    pytest.mark.xdist_group("browser"),
]

FLAGS = (
    *("--headless", "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run"),
    *("--disable-background-networking", "--disable-component-update", "--disable-sync"),
    "--disable-dev-shm-usage",
)
PHONE = {"width": 360, "height": 740, "deviceScaleFactor": 2, "mobile": True}


class Operator:
    """Somebody with a browser, who reads and clicks."""

    def __init__(self, driver: Chrome) -> None:
        self.driver = driver

    def find(self, selector: str) -> WebElement:
        return self.driver.find_element(By.CSS_SELECTOR, selector)

    def text(self, selector: str) -> str:
        return self.find(selector).text

    def rows(self, section: str) -> list[list[str]]:
        cells = "return [...document.querySelectorAll(arguments[0] + ' tbody tr')].map("
        cells += "row => [...row.cells].map(cell => cell.innerText.trim()))"
        found: list[list[str]] = self.driver.execute_script(cells, f"#{section}-table")
        return found

    def click(self, what: WebElement | str) -> None:
        """Follow a link with this text, or an element, to the next page."""
        element = self.driver.find_element(By.LINK_TEXT, what) if isinstance(what, str) else what
        element.click()
        WebDriverWait(self.driver, START_S).until(staleness_of(element))

    def type_into(self, selector: str, text: str) -> None:
        self.find(selector).send_keys(text)


@pytest.fixture
def daemon(tmp_path: Path) -> Iterator[DaemonProcess]:
    tokens = write_tokens(tmp_path, list(TOKENS))
    with DaemonProcess(tmp_path, *OPTIONS, "--auth-tokens", str(tokens)) as process:
        yield process
        assert "http-page-failed" not in process.said()


@pytest.fixture
def client(daemon: DaemonProcess) -> Iterator[SyncClient]:
    with closing(SyncClient(daemon.address, auth=secret("operator"))) as connected:
        fill(connected)
        yield connected


@pytest.fixture
def operator(daemon: DaemonProcess, tmp_path: Path) -> Iterator[Operator]:
    options = ChromeOptions()
    options.binary_location = CHROMIUM or ""
    for flag in (*FLAGS, f"--user-data-dir={tmp_path}/profile"):
        options.add_argument(flag)
    options.set_capability("goog:loggingPrefs", {"browser": "ALL"})
    with closing_driver(Chrome(options, Service(CHROMEDRIVER))) as driver:
        host, port = http_address(daemon)
        driver.get(f"http://any:{secret('reader')}@{host}:{port}/?refresh=0")
        yield Operator(driver)
        said = driver.get_log("browser")
        assert [
            line for line in said if line["level"] != "DEBUG" and "favicon" not in str(line)
        ] == []


class closing_driver:  # noqa: N801 - a context manager, as contextlib.closing
    def __init__(self, driver: Chrome) -> None:
        self.driver = driver

    def __enter__(self) -> Chrome:
        return self.driver

    def __exit__(self, *_: object) -> None:
        self.driver.quit()


def fill(client: SyncClient) -> None:
    """Fifty mails that all failed, others that failed, one worked on, one that waits for it."""
    client.limit("mails", attempts=1)
    for at in range(52):
        client.enqueue("mails", "x", uri=f"mailto:user{at}@example.org")
    jobs = client.next("mails", count=52)
    assert jobs.token is not None
    for at, job in enumerate(jobs):
        error = f"SMTP 550 no such user {1000 + at}" if at < 50 else "SMTP 451 try later"
        client.release(job.key, jobs.token, error=error)
    client.enqueue("search", "x", uri="https://example.org/page")
    client.next("search", lease=3600)
    client.enqueue("search", "x", uri="https://example.org/page")
    for at in range(3):
        client.set(f"reports:128:1000000:{at}", "x")  # due long ago


def test_operator_finds_the_trouble_retries_it_and_pauses_everything(
    operator: Operator, daemon: DaemonProcess, client: SyncClient
) -> None:
    # what fails most
    operator.driver.refresh()
    assert operator.rows("failing")[0][:3] == ["SMTP 550 no such user #", "mails", "50"]
    # who works on what; is anybody on the queue of reports?
    operator.click("Workers")
    [worker] = operator.rows("workers")
    assert worker[1:4] == ["works", "1", "search"]
    assert [row[:2] for row in operator.rows("unserved")] == [["reports", "3"]]
    operator.type_into("input[name=name]", "reports")
    operator.click(operator.find("main form button"))
    assert operator.text("#service") == "Nobody works on it; nobody waits for work of it."
    # why a job waits
    operator.click("Find an entry")
    operator.type_into("input[name=key]", "https://example.org/page")
    operator.click(operator.find("main form button"))
    assert "its URI" in operator.text("#reasons")
    # retry what fails: read only until somebody has logged in
    operator.click("Failing")
    operator.click("SMTP 550 no such user #")
    assert operator.text("#buried") == "50"
    operator.click("Retry them")
    assert not operator.driver.find_elements(By.CSS_SELECTOR, "#confirm")
    operator.click("log in with an access token")
    operator.type_into("input[name=token]", secret("operator"))
    operator.click(operator.find("main form button"))
    assert operator.text("#number") == "50"
    operator.click(operator.find("#confirm"))
    assert operator.text("#notice").startswith("50 entries retried: dead letters of the domain")
    assert states(client, "mails") == {"due": 50, "buried": 2}
    # stop everything, and go on
    operator.click("Overview")
    operator.click("Pause everything")
    Select(operator.find("select[name=for]")).select_by_visible_text("an hour")
    operator.click(operator.find("#confirm"))
    assert operator.text("#notice") == "Paused everything."
    assert operator.text("#paused-all").startswith("Everything is paused, ends in 1h")
    assert client.next("mails").pairs == []
    operator.click("Resume everything")
    operator.click(operator.find("#confirm"))
    assert operator.text("#notice") == "Resumed everything."
    assert len(client.next("mails").pairs) == 1
    operator.click(operator.find("form.out button"))
    assert operator.driver.find_elements(By.LINK_TEXT, "Log in")
    assert "action=retry what='dead letters of the domain mails, which" in daemon.said()


def test_phone_shows_every_page_without_horizontal_scrolling(
    operator: Operator, client: SyncClient
) -> None:
    driver = operator.driver
    driver.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", PHONE)
    long = "x" * 300
    client.set(f"{long}:128:0:{long}", "x", uri=f"https://{long}")
    client.bury(f"{long}:128:0:{long}", reason=long)
    address = driver.current_url.partition("/?")[0]
    for path in (
        *("/?refresh=0", "/workers", "/failing", f"/failing?error={long[:120]}&domain={long}"),
        *("/domains", "/domain?name=mails", f"/domain?name={long}", "/entry", "/login"),
        *(f"/entry?key={long}:128:0:{long}", "/act?do=pause", f"/act?do=drop&key=https://{long}"),
    ):
        driver.get(address + path)
        assert driver.execute_script("return innerWidth") == PHONE["width"], path
        wide = driver.execute_script(
            "return [...document.querySelectorAll('html, .wide')].filter("
            "one => one.scrollWidth > one.clientWidth).map(one => one.outerHTML.slice(0, 200))"
        )
        assert wide == [], path
    # the number that one came for is on the first screen
    driver.get(address + "/?refresh=0")
    for figure in ("due", "buried", "oldest_due", "worked_on"):
        assert operator.find(f"#{figure}").rect["y"] < PHONE["height"] / 2, figure
