"""Blocks of code on the pages: each is run by a test, or is an illustration that is checked."""

from __future__ import annotations

import functools
import json
import re
import shlex
import tomllib
from collections.abc import Iterator
from pathlib import Path

import click
import pytest

from fj_cli.examples import OTHER_EXAMPLES
from tests.docs.manual_pages import subcommands_of
from tests.docs.pages import ILLUSTRATIONS, blocks
from tests.system.staging import ROOT

PAGES = {
    str(path.relative_to(ROOT)): path.read_text(encoding="utf-8")
    for path in (ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md")))
}

RUN = {
    "README.md": "docs/test_readme_tour.py",
    "docs/guides/consuming.md": "docs/test_guides.py",
    "docs/guides/crawler.md": "docs/test_guides.py",
    "docs/migrating.md": "docs/test_migrating_scripts.py",
    "docs/producing.md": "docs/test_producing_guide.py",
    "docs/quickstart.md": "docs/test_quickstart.py",
    "docs/runbooks.md": "docs/test_runbook.py",
    "docs/spark.md": "spark/test_spark_page.py",
    "docs/spool.md": "docs/test_code_blocks.py",
    "docs/tasks.md": "docs/test_tasks_page.py",
    "docs/testing.md": "docs/test_testing_page.py",
    "docs/tutorial.md": "docs/test_tutorial.py",
    "docs/two-machines.md": "docs/test_two_machines.py",
}
"""Pages with blocks that are run, and the test that runs all of them."""

LANGUAGES_RUN = ("python", "sh", "sql")
FENCE = re.compile(r"^```(.*)$", re.MULTILINE)
FENCED = re.compile(r"^```.*?^```$", re.MULTILINE | re.DOTALL)
INDENTED = re.compile(r"(?<=\n\n) {4}\S.*$", re.MULTILINE)
PROGRAM = re.compile(r"(?:fj-cli|fj-forwarder|fj-nightly|fj-worker|fastjournald)\b")
ADVICE = (
    "run it in a test and name that in RUN (python, sh, sql), or mark it as an illustration: "
    "text (output, files), console (commands to adapt), ini, json, toml"
)


@pytest.mark.parametrize("page", PAGES)
def test_page_has_no_block_that_is_neither_run_nor_an_illustration(page: str) -> None:
    text = PAGES[page]
    opened = [language.strip() for language in FENCE.findall(text)[::2]]
    known = {"text", *ILLUSTRATIONS, *(LANGUAGES_RUN if page in RUN else ())}
    assert not [language for language in opened if language not in known], ADVICE
    assert len(opened) == len(blocks(text)), "a block does not end, or does not begin a line"
    assert not INDENTED.findall(FENCED.sub("", text)), f"fence this block: {ADVICE}"


def test_page_of_blocks_that_are_run_is_named_by_the_test_that_runs_them() -> None:
    for page, test in RUN.items():
        assert Path(page).name in (ROOT / "tests" / test).read_text(encoding="utf-8"), test
        assert [language for language, _ in blocks(PAGES[page]) if language in LANGUAGES_RUN], page


def illustrations(*languages: str) -> Iterator[tuple[str, str]]:
    """Yield page and text of each block of these languages."""
    for page, text in PAGES.items():
        yield from ((page, block) for language, block in blocks(text) if language in languages)


def test_page_illustrations_of_files_can_be_read() -> None:
    found = [tomllib.loads(block) for _, block in illustrations("toml")]
    found += [json.loads(block) for _, block in illustrations("json")]
    assert all(found)
    assert found


def options_of(context: click.Context) -> set[str]:
    """Return the names of the options of a command, and of the groups that it is in."""
    options = {name for option in context.command.params for name in option.opts}
    options |= set(context.help_option_names)
    return options | (options_of(context.parent) if context.parent else set())


@functools.cache
def contexts_of(program: str) -> dict[str, click.Context]:
    """Return the commands of a program by their names."""
    return {context.command_path: context for context in subcommands_of(program)}


def unknown_names(line: str) -> list[str]:
    """Return the subcommand and the options of a command line that its program does not have."""
    program, *words = shlex.split(line, comments=True)
    contexts = contexts_of(program)
    path = program
    # options of the group: fj-cli --server ADDRESS stats
    first = {name: o for o in contexts[program].command.params for name in o.opts}
    while len(contexts) > 1 and words and words[0] in first:
        option = first[words.pop(0)]
        if isinstance(option, click.Option) and not option.is_flag:
            words.pop(0)
    while words and any(f"{name} ".startswith(f"{path} {words[0]} ") for name in contexts):
        path = f"{path} {words.pop(0)}"
    if path not in contexts or isinstance(contexts[path].command, click.Group):
        return [" ".join([path, *words[:1]])]
    words = words[: words.index("--exec")] if "--exec" in words else words
    known = options_of(contexts[path])
    return [word for word in words if word[:2] == "--" and word.partition("=")[0] not in known]


def test_command_help_has_examples_with_options_that_exist() -> None:
    contexts = contexts_of("fj-cli")
    leaves = {
        path: context.command
        for path, context in contexts.items()
        if not isinstance(context.command, click.Group)
    }
    assert not [
        path for path, command in leaves.items() if "Examples:" not in (command.epilog or "")
    ]
    assert {f"fj-cli {name}" for name in OTHER_EXAMPLES} <= leaves.keys()
    lines = [line for lines in OTHER_EXAMPLES.values() for line in lines]
    assert not [(line, unknown) for line in lines if (unknown := unknown_names(line))]


def test_page_illustrations_of_commands_have_options_that_exist() -> None:
    lines = [
        (page, line)
        for page, block in illustrations("console")
        for line in block.replace("\\\n", " ").splitlines()
        if PROGRAM.match(line)
    ]
    assert len(lines) > 10
    assert not [(page, line, unknown) for page, line in lines if (unknown := unknown_names(line))]
    assert unknown_names("fj-cli next pages --wat --exec cat --wet") == ["--wat"]
    assert unknown_names("fj-cli --server HOST:1 log verify --wat DIR") == ["--wat"]
    assert unknown_names("fj-cli log verifies DIR") == ["fj-cli log verifies"]
    assert unknown_names("fj-cli nest pages") == ["fj-cli nest"]


def test_spool_block_of_its_page_appends_a_record(tmp_path: Path) -> None:
    spool = str(tmp_path / "spool")
    ours = [block for kind, block in blocks(PAGES["docs/spool.md"]) if kind in LANGUAGES_RUN]
    for block in ours:
        assert "/var/spool/fastjournal" in block
        names: dict[str, object] = {}
        exec(block.replace("/var/spool/fastjournal", spool), names)
        key = names["key"]
        assert isinstance(key, bytes)
        assert key.startswith(b"pages:")
    assert len(list(Path(spool).glob("*.fjs"))) == 1
