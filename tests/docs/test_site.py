"""Documentation site: it builds without a warning, and its reference has all that the code has."""

from __future__ import annotations

import html
import os
import re
import subprocess
import sys
from pathlib import Path

import click
import msgspec
import pytest

import fastjournal
from fastjournal import errors
from fastjournal.client import Client, Job, SyncClient, SyncJob
from fastjournal.protocol.constants import ErrorCode
from fastjournald.config.options import Config
from tests.docs.manual_pages import PROGRAMS, subcommands_of
from tests.system.staging import ROOT

pytestmark = pytest.mark.xdist_group("site")

LOADED = re.compile(
    r"<(?:script|img|iframe|source|video)\b[^>]*\bsrc=[\"']?((?:https?:)?//[^\"' >]+)"
    r"|<link\b(?![^>]*\brel=[\"']?(?:canonical|prev|next))"
    r"[^>]*\bhref=[\"']?((?:https?:)?//[^\"' >]+)"
    r"|(?:@import\s+|url\()[\"']?((?:https?:)?//[^\"')]+)"
)
"""Address of another host from which a browser loads something for a page or a style sheet."""


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Build the site as ``make docs`` does; return its directory."""
    target = tmp_path_factory.mktemp("site")
    done = subprocess.run(
        [sys.executable, "-m", "mkdocs", "build", "--strict", "--quiet", "--site-dir", str(target)],
        cwd=ROOT,
        env=os.environ | {"NO_MKDOCS_2_WARNING": "1"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")
    return target


def text_of(site: Path, page: str) -> str:
    """Return a page without tags."""
    text = re.sub(r"<[^>]+>", "", (site / page).read_text(encoding="utf-8"))
    return html.unescape(text)


def test_site_has_a_page_for_each_page_of_docs(site: Path) -> None:
    for page in (ROOT / "docs").rglob("*.md"):
        name = page.relative_to(ROOT / "docs").with_suffix(".html")
        assert (site / name.with_name(name.name.replace("README", "index"))).is_file()
    assert "acknowledged survives" in text_of(site, "index.html")


def test_site_loads_nothing_from_other_hosts(site: Path) -> None:
    files = [*site.rglob("*.html"), *site.rglob("*.css")]
    assert len(files) > 40
    found = {file.name: LOADED.findall(file.read_text(encoding="utf-8")) for file in files}
    assert not {name: loaded for name, loaded in found.items() if loaded}
    assert LOADED.findall('<script src="//a.example/x.js"><link rel="stylesheet" href=https://b/c>')


def test_site_reference_has_all_options_and_subcommands(site: Path) -> None:
    page = text_of(site, "reference/configuration.html")
    for field in msgspec.structs.fields(Config):
        assert f"{field.encode_name}\n" in page, field.name
    for program in PROGRAMS:
        page = text_of(site, f"reference/{program}.html")
        for context in subcommands_of(program):
            assert f"{context.command_path} " in page
            options = [o for o in context.command.params if isinstance(o, click.Option)]
            names = [name for o in options if not o.hidden for name in o.opts]
            assert not [name for name in names if name not in page]


def test_site_reference_has_all_error_codes_and_exceptions(site: Path) -> None:
    page = text_of(site, "reference/errors.html")
    assert not [code for code in ErrorCode if f"{code}\n" not in page]
    assert not [name for name in dir(errors) if name.endswith("Error") and name not in page]


def test_site_reference_has_all_public_names_with_their_methods(site: Path) -> None:
    page = (site / "reference/api.html").read_text(encoding="utf-8")
    anchors = set(re.findall(r'id="fastjournal\.([\w.]+)"', page))
    assert anchors >= set(fastjournal.__all__)
    for name in ("SyncClient", "Client", "Spool", "Job", "SyncJob"):
        methods = {method for method in vars(getattr(fastjournal, name)) if method[0] != "_"}
        assert anchors >= {f"{name}.{method}" for method in methods}


def test_site_reference_has_the_text_of_both_clients_where_it_is_written_once(site: Path) -> None:
    page = text_of(site, "reference/api.html")
    assert page.count("Complete the job: the entry is deleted.") == len((Job, SyncJob))
    assert page.count("Hold a lock on an entry while the block runs") == len((Client, SyncClient))
    assert page.count("Renew a lease (with its token)") == len((Client, SyncClient))
    assert page.count("The delay is doubled for each earlier failure") == len((Client, SyncClient))


def test_site_reference_has_all_metrics(site: Path) -> None:
    page = text_of(site, "reference/metrics.html")
    named = re.findall(r"`((?:fastjournal|process)_\w+)", (ROOT / "docs/operating.md").read_text())
    assert len(named) > 50
    alerts = (ROOT / "monitoring/forwarder-alerts.yml").read_text(encoding="utf-8")
    named += re.findall(r"\bfastjournal_forwarder_\w+", alerts)
    assert not [name for name in named if name not in page]
