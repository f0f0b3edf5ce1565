"""Manual pages: up to date with the options, complete, and silent under man's checks."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from fj_cli.cli import COMMANDS
from tests.docs.manual_pages import (
    COMPLETION_FILES,
    COMPLETIONS,
    DIRECTORY,
    PROGRAMS,
    completion_of,
    page_of,
    path_of,
)


@pytest.mark.parametrize("name", PROGRAMS)
def test_page_of_the_manual_is_that_of_the_options(name: str) -> None:
    assert path_of(name).read_text(encoding="utf-8") == page_of(name), "run: make pages"


def test_page_of_the_manual_exists_for_each_program_and_no_other() -> None:
    assert {path.name for path in DIRECTORY.iterdir()} == {path_of(name).name for name in PROGRAMS}


@pytest.mark.parametrize("shell", COMPLETION_FILES)
def test_completion_of_fj_cli_is_that_of_its_commands(shell: str) -> None:
    file = COMPLETIONS / shell / COMPLETION_FILES[shell]
    assert file.read_text(encoding="utf-8") == completion_of(shell), "run: make pages"


def test_completion_of_fj_cli_gives_subcommands_to_bash() -> None:
    file = COMPLETIONS / "bash" / COMPLETION_FILES["bash"]
    words = "COMP_WORDS=(fj-cli spool st); COMP_CWORD=2; _fj_cli_completion fj-cli"
    done = subprocess.run(
        ["bash", "-c", f'. {file}; {words}; echo "${{COMPREPLY[@]}}"'],
        capture_output=True,
        text=True,
        check=True,
        env=os.environ | {"PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}"},
    )
    assert done.stdout.split() == ["status"]


def rendered(name: str) -> str:
    done = subprocess.run(
        ["groff", "-man", "-Tutf8", "-ww", "-P-cbou", "-rLL=100n", str(path_of(name))],
        capture_output=True,
        text=True,
        check=True,
        env=os.environ | {"LC_ALL": "C.UTF-8"},
    )
    assert done.stderr == "", "groff warns"
    return done.stdout


@pytest.mark.skipif(shutil.which("groff") is None, reason="groff is not installed here")
@pytest.mark.parametrize("name", PROGRAMS)
def test_page_of_the_manual_is_set_without_warnings(name: str) -> None:
    text = rendered(name)
    for head in ("NAME", "SYNOPSIS", "DESCRIPTION", "OPTIONS", "NOTES", "SEE ALSO"):
        assert f"\n{head}\n" in text
    assert "--help" in text


@pytest.mark.skipif(shutil.which("groff") is None, reason="groff is not installed here")
def test_page_of_fj_cli_has_every_command_its_examples_and_its_settings() -> None:
    text = rendered("fj-cli")
    groups = {"dead", "log", "remote", "spool", "import", "token", "export"}
    for name in COMMANDS.keys() - groups:
        assert f"\n   fj-cli {name}\n" in text, name
    assert "fj-cli log dump" in text
    assert "fj-cli remote restore" in text
    assert "fj-cli next pages --exec cat\n" in text
    assert 'server = "tls://jobs.example.org:9923"\n' in text
    assert "Exit codes: 0 done" in text
