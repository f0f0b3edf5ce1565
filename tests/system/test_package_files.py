"""Packaging beside wheels: Debian package, container file, audit. `make test-deb` installs one."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import sysconfig
from pathlib import Path

import pytest

from tests.integration.programs import installed
from tests.system.staging import ROOT

PACKAGING = ROOT / "packaging"
DEBIAN = PACKAGING / "debian"
CONTAINERFILE = PACKAGING / "Containerfile"
DEADLINE_S = 60


def test_install_script_of_the_container_takes_relative_paths_of_the_caller(tmp_path: Path) -> None:
    """It changes its directory, and starts itself anew by ``unshare``, which is told here."""
    tools, programs = tmp_path / "tools", tmp_path / "programs"
    tools.mkdir()
    programs.mkdir()
    for name in ("podman", "crun", "unshare", "ip", "openssl", "id"):
        says = {"unshare": 'printf "%s\\n" "$@"', "id": "echo 0"}.get(name, "exit 1")
        (tools / name).write_text(f"#!/bin/sh\n{says}\n")
        (tools / name).chmod(0o755)
    script = os.path.relpath(PACKAGING / "try-container", tmp_path)
    done = subprocess.run(
        [script, "programs"],
        cwd=tmp_path,
        env={"PATH": f"{tools}:{os.environ['PATH']}", "TMPDIR": str(tmp_path)},
        capture_output=True,
        text=True,
        check=True,
    )
    *_, itself, given = done.stdout.splitlines()
    assert (itself, given) == (str(PACKAGING / "try-container"), str(programs))


@pytest.mark.parametrize(
    ("builder", "options"), [("podman --root x", "--format docker"), ("docker", "")]
)
def test_install_of_a_container_keeps_its_health_check(builder: str, options: str) -> None:
    done = subprocess.run(
        ["make", "--dry-run", "container", f"CONTAINER_BUILDER={builder}"],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=True,
    )
    given = re.findall(r"--format \S+", done.stdout)
    assert given == [options] * bool(options), "podman's own format has no health check"


def test_install_scripts_of_the_debian_package_name_units_that_there_are() -> None:
    text = "".join((DEBIAN / name).read_text("utf-8") for name in ("postinst", "prerm", "postrm"))
    units = set(re.findall(r"[\w-]+\.(?:service|socket|timer)\b", text))
    assert units == {"fastjournald.socket", "fastjournald.service", "fj-forwarder.service"}
    assert all((ROOT / "systemd" / unit).is_file() for unit in units)
    control = (DEBIAN / "control").read_text(encoding="utf-8")
    build = (DEBIAN / "build").read_text(encoding="utf-8")
    for name in re.findall(r"@[A-Z]+@", control):
        assert re.search(rf"s(.){name}\1", build), "the build fills it in"


FAKE_SYSTEMCTL = """#!/bin/sh
cd "$(dirname "$0")"
case $1 in
is-enabled) test -e "enabled/$3" ;;
enable) shift 3; for unit; do touch "enabled/$unit"; done ;;
disable) shift 3; for unit; do rm -f "enabled/$unit"; done ;;
esac
"""


@pytest.mark.parametrize("forwards", [False, True])
def test_install_after_a_removal_enables_what_was_enabled(tmp_path: Path, forwards: bool) -> None:
    enabled, etc, running = tmp_path / "enabled", tmp_path / "etc", tmp_path / "run"
    for directory in (enabled, etc, running):
        directory.mkdir()
    for name in ("systemctl", "systemd-sysusers", "systemd-tmpfiles"):
        program = tmp_path / name
        program.write_text(FAKE_SYSTEMCTL if name == "systemctl" else "#!/bin/sh\n", "utf-8")
        program.chmod(0o755)

    def run(name: str, *arguments: str) -> set[str]:
        script = (DEBIAN / name).read_text(encoding="utf-8")
        script = script.replace("/etc/fastjournal", str(etc))
        script = script.replace("/run/systemd/system", str(running))
        path = {"PATH": f"{tmp_path}:{os.environ['PATH']}"}
        subprocess.run(["sh", "-c", script, name, *arguments], check=True, env=path)
        return {unit.name for unit in enabled.iterdir()}

    units = run("postinst", "configure", "")
    assert units == {"fastjournald.socket", "fastjournald.service"}
    if forwards:
        (enabled / "fj-forwarder.service").touch()
        units.add("fj-forwarder.service")
    assert run("prerm", "remove") == set()
    # the configuration stayed, so the version that was removed is named
    assert run("postinst", "configure", "0.1.0") == units
    # who has disabled them since is heard
    (enabled / "fastjournald.socket").unlink()
    assert run("prerm", "upgrade", "0.2.0") == run("postinst", "configure", "0.1.0")
    assert not list(etc.iterdir())


def instruction(name: str) -> str:
    """Return the arguments of the last instruction of that name in the container file."""
    text = CONTAINERFILE.read_text(encoding="utf-8").replace("\\\n", " ")
    return re.findall(rf"^{name} (.*)$", text, re.MULTILINE)[-1]


def test_install_of_a_container_is_silent_under_hadolint() -> None:
    linter = Path(sysconfig.get_path("scripts")) / "hadolint"
    done = subprocess.run(
        [str(linter), str(CONTAINERFILE)], capture_output=True, text=True, check=False
    )
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")


def test_service_in_a_container_starts_and_its_health_check_follows_the_daemon(
    tmp_path: Path,
) -> None:
    program, *options = json.loads(instruction("ENTRYPOINT"))
    places = {"/var/lib/fastjournal": str(tmp_path), "/run/fastjournal": str(tmp_path)}
    places["127.0.0.1:9924"] = "127.0.0.1:0"
    for text, other in places.items():
        options = [option.replace(text, other) for option in options]
    daemon = subprocess.Popen([installed(program), *options], stderr=subprocess.PIPE, text=True)
    try:
        assert daemon.stderr is not None
        ready = next(line for line in daemon.stderr if "event=ready" in line)
        address = ready.strip().partition("http=")[2]
        _, check, *words = json.loads(instruction("HEALTHCHECK").partition("CMD ")[2])
        check_it = [sys.executable, check, *(w.replace("127.0.0.1:9924", address) for w in words)]
        subprocess.run(check_it, check=True, timeout=DEADLINE_S)
        daemon.terminate()
        daemon.communicate(timeout=DEADLINE_S)
        assert daemon.returncode == 0
    finally:
        daemon.kill()
        daemon.communicate()
    stopped = subprocess.run(check_it, check=False, capture_output=True, timeout=DEADLINE_S)
    assert stopped.returncode == 1
