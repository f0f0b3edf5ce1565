"""Guides: docs/guides/consuming.md and crawler.md, block for block, on a socket of their own."""

from __future__ import annotations

import tempfile
from pathlib import Path

import pytest

from tests.docs.pages import blocks, run_script, with_own_socket
from tests.system.staging import ROOT

SHOWN = {
    "consuming": (
        "page 5 failed 3 times; buried: True",
        "asyncio: 12 attempts",
        "page 5 failed: no route to host",
        "trio: 9 done",
        "threads: 9 done",
        "poll: page 11",
        "\n10\n",
    ),
    "crawler": ("/13 failed 2 times; buried: True", "\n      2 /13\n      1 /", "\n37\n"),
}
"""Guides, and what their blocks print among other things."""


def script(name: str, directory: str) -> str:
    """The guide as one shell script on a directory."""
    text = (ROOT / "docs" / "guides" / f"{name}.md").read_text(encoding="utf-8")
    parts = ["set -eu"]
    for language, block in blocks(text):
        if language == "python":
            parts.append(f"python -W error - <<'END_OF_BLOCK'\n{block}END_OF_BLOCK")
        elif language == "sh":
            parts.append(block)
    daemon = f"fastjournald --cmdlog-path /tmp/{name}/log &"
    return with_own_socket("\n".join(parts), daemon, directory).replace(
        f"/tmp/{name}", f"{directory}/{name}"
    )


@pytest.mark.parametrize("name", SHOWN)
def test_page_of_a_guide_does_what_it_says(name: str) -> None:
    with tempfile.TemporaryDirectory(prefix="fj-") as directory:
        server = f"unix:{directory}/socket"
        text = script(name, directory)
        status, shown = run_script(text, Path(directory), FASTJOURNAL_SERVER=server)
        assert status == 0, shown
        for line in SHOWN[name]:
            assert line in shown, shown
        assert not Path(directory, name).exists()
