"""Pages whose blocks a person types: as one script, run in a shell of its own."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
from collections.abc import Collection, Sequence
from contextlib import suppress
from pathlib import Path

from tests.integration.programs import PRELOADED
from tests.integration.shell_commands import forked_commands

DEADLINE_S = 240
END = "=== end of block"
ILLUSTRATIONS = ("console", "ini", "json", "toml")
"""Languages of blocks that are not run: commands to adapt, and parts of files."""
BLOCK = re.compile(r"^```(\w+)\n(.*?)^```$", re.MULTILINE | re.DOTALL)


def blocks(text: str) -> list[tuple[str, str]]:
    """Return language and text of each block of a page."""
    found: list[tuple[str, str]] = BLOCK.findall(text)
    return found


def steps(text: str) -> list[tuple[str, str]]:
    """Return the commands of each block of a page, and the output that the page shows.

    Args:
        text: Page of which each block is ``sh``, or ``text``: the output of the block before it;
            or an illustration.
    """
    found: list[tuple[str, str]] = []
    for language, block in blocks(text):
        if language == "sh":
            found.append((block, ""))
        elif language not in ILLUSTRATIONS:
            assert language == "text", "every block is run, or is what one prints"
            assert not found[-1][1], "one output a block"
            found[-1] = (found[-1][0], block)
    return found


def script_of(several: list[tuple[str, str]]) -> str:
    """Return the steps as one script, which marks the end of each in its output."""
    return "\n".join(["set -u", *(f"{commands}echo '{END}'\n" for commands, _ in several)])


def check_output(several: list[tuple[str, str]], printed: str) -> None:
    """Compare the output of a script of steps with what the page shows."""
    pieces = printed.split(f"{END}\n")
    assert len(pieces) == len(several) + 1, printed
    for (commands, expected), found in zip(several, pieces, strict=False):
        assert matches(expected, found), f"{commands}printed\n{found}\nand not\n{expected}"


def matches(expected: str, printed: str) -> bool:
    """Whether that was printed, with anything of one line in the place of ``...``.

    Blanks at the ends of lines do not count: tables have them, and pages do not.
    """
    pattern = ".*".join(re.escape(part) for part in without_trailing_blanks(expected).split("..."))
    return re.fullmatch(pattern, without_trailing_blanks(printed)) is not None


def without_trailing_blanks(text: str) -> str:
    """Return a text without the blanks at the ends of its lines."""
    return re.sub(r" +$", "", text, flags=re.MULTILINE)


def with_own_socket(script: str, daemon: str, directory: str) -> str:
    """Return a script whose daemon listens on a socket of its own.

    The page itself waits for the daemon: what a person pastes at once has nobody's patience.

    Args:
        script: Script in which the daemon listens where it does by itself.
        daemon: The line that starts it, in the background.
        directory: Directory of the socket.
    """
    assert f"{daemon}\nuntil fj-cli ping " in script, "the next block finds no daemon yet"
    listening = daemon.replace(" &", f" --listen unix:{directory}/socket &")
    return script.replace(daemon, listening).replace("127.0.0.1:9923", f"unix:{directory}/socket")


def run_script(
    script: str,
    directory: Path,
    *,
    cwd: Path | None = None,
    errors: bool = True,
    prefix: Sequence[str] = (),
    forked: Collection[str] = tuple(PRELOADED),
    **environment: str,
) -> tuple[int, str]:
    """Run a script with the installed commands; return its status, and all that it printed.

    The fork servers of the integration tests start the commands that can be forked.

    Args:
        script: For bash; what it leaves running is killed.
        directory: For what it prints; the home of whoever runs it.
        cwd: Where it runs; None: in the directory.
        errors: Whether standard error counts as printed, too.
        prefix: Command that runs bash: ``unshare`` for a network of its own.
        forked: Commands that may be forked.
        environment: More variables; none of ours is inherited.
    """
    own = {name: value for name, value in os.environ.items() if "FASTJOURNAL" not in name}
    output = directory / "output"
    with output.open("wb") as stdout, forked_commands(forked) as places:
        run = subprocess.Popen(
            [*prefix, "bash", "-c", script],
            cwd=cwd or directory,
            env={
                **own,
                "HOME": str(directory),
                "XDG_CONFIG_HOME": str(directory),
                "PATH": ":".join([*places, str(Path(sys.executable).parent), os.environ["PATH"]]),
                **environment,
            },
            stdin=subprocess.DEVNULL,
            stdout=stdout,
            stderr=stdout if errors else None,
            start_new_session=True,
        )
        try:
            status = run.wait(DEADLINE_S)
        finally:
            with suppress(ProcessLookupError):
                os.killpg(run.pid, signal.SIGKILL)
            run.wait()
    return status, output.read_text(encoding="utf-8")
