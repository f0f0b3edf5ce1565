"""Continuous integration: tools that tests skip for, and checkouts in which the tests run."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tests.integration.example_programs import TOOLS
from tests.users import changes_users

ROOT = Path(__file__).resolve().parents[2]
FILE = Path(__file__).name
SCRIPT = ROOT / ".ci/tools"
NEEDED = re.compile(r"\bwhich\(\s*\"([a-z0-9.-]+)\"")
ALIASES = {"chromium-browser"}
NOT_SKIPPED = {"sh", "bash"}


def needed_tools() -> set[str]:
    """Return the tools that tests look for; benchmarks are no part of the suite."""
    files = [path for path in (ROOT / "tests").rglob("*.py") if "bench" not in path.parts]
    found = {tool for path in files for tool in NEEDED.findall(path.read_text())}
    return (found | set(TOOLS.values())) - ALIASES - NOT_SKIPPED


def run(tmp_path: Path, *arguments: str, apt_get: str) -> list[str]:
    """Run the script where only bash and an ``apt-get`` are installed; return its lines."""
    programs = tmp_path / "bin"
    programs.mkdir()
    script = programs / "apt-get"
    script.write_text(f"#!{shutil.which('bash')}\n{apt_get}\n")
    script.chmod(0o755)
    text = SCRIPT.read_text().replace("PATH=$PATH:/usr/sbin:/sbin\n", "")
    done = subprocess.run(
        [shutil.which("bash") or "bash", "-c", text, "tools", *arguments],
        env={"PATH": str(programs)},
        capture_output=True,
        text=True,
        check=True,
        timeout=60,
    )
    return done.stdout.splitlines()


def test_install_list_of_ci_names_each_missing_tool_that_tests_skip_for(tmp_path: Path) -> None:
    prefix = "left out: the tests that need "
    lines = run(tmp_path, apt_get="exit 1")
    named = {line.removeprefix(prefix) for line in lines if "root" not in line}
    assert needed_tools() <= named, "add the tool to .ci/tools"
    assert any("root" in line for line in lines) is (os.geteuid() != 0)


@pytest.mark.parametrize("succeeds", [True, False])
def test_install_by_ci_adds_interpreters_and_names_those_that_failed(
    tmp_path: Path, succeeds: bool
) -> None:
    lines = run(tmp_path, "install", apt_get=f'echo "got $*"; exit {0 if succeeds else 1}')
    left_out = [line for line in lines if line.startswith("left out: the installation of ")]
    if os.geteuid() != 0:
        assert any("php-cli, which needs root" in line for line in left_out)
        return
    assert lines[0] == "got update -q"
    for package in ("php-cli", "nodejs", "golang-go", "build-essential", "strace"):
        assert f"got install -qy --no-install-recommends {package}" in lines
        failure = f"left out: the installation of {package}, which failed"
        assert (failure in lines) is not succeeds


@changes_users
def test_right_of_other_users_to_read_the_checkout_is_needed_by_no_test(tmp_path: Path) -> None:
    """A home directory of root is such a place, and what a umask of 077 makes."""
    checkout = tmp_path / "home of root"
    mask = os.umask(0o077)
    try:
        for name in ("fastjournal", "daemon", "client", "tests", "examples"):
            shutil.copytree(ROOT / name, checkout / name, copy_function=shutil.copyfile)
        shutil.copyfile(ROOT / "pyproject.toml", checkout / "pyproject.toml")
    finally:
        os.umask(mask)
    checkout.chmod(0o700)
    tests = [path for path in (checkout / "tests").rglob("test_*.py") if path.name != FILE]
    files = [str(path) for path in tests if "@changes_users" in path.read_text()]
    done = subprocess.run(
        [sys.executable, *["-m", "pytest", "-q", "-p", "no:xdist", "-m", "changes_users"], *files],
        cwd=checkout,
        env=os.environ | {"PYTHONPATH": f"{checkout}/daemon:{checkout}/client"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout
    assert "skipped" not in done.stdout
    assert "leaked" not in done.stderr
