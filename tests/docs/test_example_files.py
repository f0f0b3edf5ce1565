"""Example configuration files: up to date with the options, and taken by the programs."""

from __future__ import annotations

import re
import subprocess
from pathlib import Path

import msgspec
import pytest

from fastjournal.client.core.settings import NAMES, find_daemon
from fastjournald.config.load import load_config
from fastjournald.config.options import Config
from tests.docs.example_files import DIRECTORY, EXAMPLES, NEEDED_BY_THE_UNIT, STATE, USUAL
from tests.integration.programs import installed

COMMENTED_OUT = re.compile(r"^# (?=\w+ ?= ?\S)", re.MULTILINE)
"""Comment sign before an option."""


@pytest.mark.parametrize("name", EXAMPLES)
def test_config_example_is_that_of_the_options(name: str) -> None:
    assert (DIRECTORY / name).read_text(encoding="utf-8") == EXAMPLES[name](), "run: make pages"


def test_config_example_exists_for_each_generator_and_no_other() -> None:
    assert {path.name for path in DIRECTORY.glob("*.example")} == set(EXAMPLES)


@pytest.fixture
def example(tmp_path: Path) -> str:
    """The example of the daemon, with directories of this test."""
    return EXAMPLES["fastjournald.toml.example"]().replace(STATE, str(tmp_path))


def test_config_example_has_each_option_and_shows_its_default(tmp_path: Path, example: str) -> None:
    pieces = COMMENTED_OUT.split(example)
    options = {piece.partition(" ")[0] for piece in pieces[1:]} | set(NEEDED_BY_THE_UNIT)
    assert options == set(Config.__struct_fields__)

    file = tmp_path / "fastjournald.toml"
    needed = {name: path.replace(STATE, str(tmp_path)) for name, path in NEEDED_BY_THE_UNIT.items()}
    defaults = msgspec.structs.asdict(Config(**needed))
    for one in range(1, len(pieces)):
        # this one alone without its comment sign
        alone = "# ".join(pieces[:one]) + pieces[one] + "".join(f"# {p}" for p in pieces[one + 1 :])
        file.write_text(alone, encoding="utf-8")
        name = pieces[one].partition(" ")[0]
        if name in USUAL:
            usual = {name: USUAL[name].replace(STATE, str(tmp_path))}
            assert msgspec.structs.asdict(load_config(str(file), {})) == defaults | usual
            continue
        assert msgspec.structs.asdict(load_config(str(file), {})) == defaults, pieces[one]


def test_config_example_passes_the_check_of_the_daemon(tmp_path: Path, example: str) -> None:
    file = tmp_path / "fastjournald.toml"
    everything = COMMENTED_OUT.sub("", example)
    for text, status, said in (
        (example, 0, "ok\n"),
        (everything, 0, "ok\n"),
        (everything.replace("idle_timeout = 86400", 'idle_timeout = "1d"'), 64, "idle_timeout"),
    ):
        file.write_text(text, encoding="utf-8")
        done = subprocess.run(
            [installed("fastjournald"), "--config", str(file), "--check-config"],
            capture_output=True,
            text=True,
            check=False,
        )
        assert done.returncode == status, done.stderr
        assert said in done.stdout + done.stderr


def test_config_example_of_the_command_line_is_read_as_its_settings(tmp_path: Path) -> None:
    file = tmp_path / "client.toml"
    example = EXAMPLES["client.toml.example"]()
    file.write_text(example, encoding="utf-8")
    assert find_daemon({}, {}, [file]) == find_daemon({}, {}, [])
    file.write_text(COMMENTED_OUT.sub("", example), encoding="utf-8")
    assert set(find_daemon({}, {}, [file])) == set(NAMES)


def test_config_example_of_the_nightly_says_what_the_unit_does_and_names_its_archive() -> None:
    unit = (DIRECTORY / "fastjournal-nightly.service").read_text(encoding="utf-8")
    variables = re.findall(r"^Environment=(FASTJOURNAL_\w+=.+)$", unit, re.MULTILINE)
    example = EXAMPLES["fastjournal-nightly.env.example"]().splitlines()
    assert [line for line in example if line and line[0] != "#"] == variables
    # a line of each program's file is enough: the unit may write there
    archive = USUAL["archive_dir"]
    assert f"# FASTJOURNAL_ARCHIVE={archive}" in example
    assert f"ReadWritePaths=-{archive}\n" in unit
    assert f'# archive_dir = "{archive}"' in EXAMPLES["fastjournald.toml.example"]()


def test_config_example_of_the_forwarder_says_what_the_unit_does() -> None:
    unit = (DIRECTORY / "fj-forwarder.service").read_text(encoding="utf-8")
    variables = re.findall(r"^Environment=(FASTJOURNAL_\w+=.+)$", unit, re.MULTILINE)
    example = EXAMPLES["fj-forwarder.env.example"]().splitlines()
    assert [line for line in example if line and line[0] != "#"] == variables
