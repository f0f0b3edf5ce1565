"""The units as `make install-systemd` writes them: complete, silent under verify, hardened."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import tomllib
from pathlib import Path

import pytest

from tests.system.staging import ROOT, Unit, install

SERVICES = ["fastjournald.service", "fj-forwarder.service", "fastjournal-nightly.service"]
UNITS = [*SERVICES, "fastjournald.socket", "fastjournal-nightly.timer"]
EXPOSURE_MAX = 1.5

needs_systemd_analyze = pytest.mark.skipif(
    shutil.which("systemd-analyze") is None, reason="systemd-analyze is not installed here"
)


def scripts() -> set[str]:
    """The console scripts that the distribution installs."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
    return set(project["project"]["scripts"])


@pytest.fixture
def unit_dir(tmp_path: Path) -> Path:
    """Installed units whose programs exist, though they do nothing."""
    bindir = tmp_path / "bin"
    bindir.mkdir()
    for name in scripts():
        (bindir / name).write_text("#!/bin/sh\n", encoding="utf-8")
        (bindir / name).chmod(0o755)
    done = install(tmp_path / "stage", bindir=str(bindir))
    assert done.returncode == 0, done.stderr
    return tmp_path / "stage/usr/local/lib/systemd/system"


def test_install_writes_every_file_below_destdir_with_its_paths_filled_in(tmp_path: Path) -> None:
    done = install(tmp_path, prefix="/opt/fastjournal")

    assert done.returncode == 0, done.stderr
    files = {str(p.relative_to(tmp_path)): p for p in tmp_path.rglob("*") if p.is_file()}
    assert set(files) == {
        *(f"opt/fastjournal/lib/systemd/system/{unit}" for unit in UNITS),
        "opt/fastjournal/share/man/man1/fj-cli.1",
        "opt/fastjournal/share/man/man1/fj-nightly.1",
        "opt/fastjournal/share/man/man1/fj-worker.1",
        "opt/fastjournal/share/man/man8/fastjournald.8",
        "opt/fastjournal/share/man/man8/fj-forwarder.8",
        "opt/fastjournal/share/bash-completion/completions/fj-cli",
        "opt/fastjournal/share/zsh/site-functions/_fj-cli",
        "opt/fastjournal/share/fish/vendor_completions.d/fj-cli.fish",
        "opt/fastjournal/lib/sysusers.d/fastjournal.conf",
        "opt/fastjournal/lib/tmpfiles.d/fastjournal.conf",
        "etc/fastjournal/fastjournald.toml",
        "etc/fastjournal/fastjournald.toml.example",
        "etc/fastjournal/client.toml.example",
        "etc/fastjournal/fj-forwarder.env.example",
        "etc/fastjournal/fastjournal-nightly.env.example",
    }
    for path in files.values():
        text = path.read_text(encoding="utf-8")
        assert not re.search(r"@[A-Z]+@", text), path
        assert str(tmp_path) not in text, path
        assert path.stat().st_mode & 0o777 == 0o644


def test_install_leaves_a_configuration_that_is_there_alone(tmp_path: Path) -> None:
    config = tmp_path / "etc/fastjournal/fastjournald.toml"
    config.parent.mkdir(parents=True)
    config.write_text("# mine\n", encoding="utf-8")

    done = install(tmp_path)

    assert done.returncode == 0, done.stderr
    assert config.read_text(encoding="utf-8") == "# mine\n"


@pytest.mark.parametrize("prefix", ["relative/path", "/opt/fast journal", "/opt/100%"])
def test_install_refuses_a_prefix_that_a_unit_would_read_otherwise(
    tmp_path: Path, prefix: str
) -> None:
    done = install(tmp_path, prefix=prefix)

    assert done.returncode != 0
    assert "not a plain absolute path" in done.stderr
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("name", SERVICES)
def test_service_starts_a_program_that_the_distribution_installs(unit_dir: Path, name: str) -> None:
    command = Unit(unit_dir / name)["Service"]["ExecStart"]

    assert Path(command.split()[0]).name in scripts()


def test_services_and_files_belong_to_the_user_that_sysusers_creates(unit_dir: Path) -> None:
    lib = unit_dir.parents[1]
    users = (lib / "sysusers.d/fastjournal.conf").read_text(encoding="utf-8")
    files = (lib / "tmpfiles.d/fastjournal.conf").read_text(encoding="utf-8")

    assert re.findall(r"^u (\S+)", users, re.MULTILINE) == ["fastjournal"]
    assert re.findall(r"^d (\S+) (\S+) (\S+) (\S+)", files, re.MULTILINE) == [
        ("/var/spool/fastjournal", "0750", "fastjournal", "fastjournal")
    ]
    for name in SERVICES:
        service = Unit(unit_dir / name)["Service"]
        assert (service["User"], service["Group"]) == ("fastjournal", "fastjournal")


def test_daemon_is_started_again_after_a_crash_but_not_after_what_a_person_must_mend(
    unit_dir: Path,
) -> None:
    service = Unit(unit_dir / "fastjournald.service")["Service"]

    assert service["Type"] == "notify"
    assert service["Restart"] == "on-failure"
    assert service["RestartPreventExitStatus"].split() == ["64", "65", "69", "74", "75"]
    # a takeover: whatever ExecStopPost has reset, and as often as it comes
    assert service["RestartForceExitStatus"] == "76"
    assert "76) systemctl reset-failed %n;;" in service["ExecStopPost"]
    # the daemon goes on where its scan worker is killed
    assert service["OOMPolicy"] == "continue"
    assert service["StateDirectory"].split()[0] == "fastjournal"
    assert service["ConfigurationDirectory"] == "fastjournal"


def test_systemd_timer_catches_up_and_does_not_start_everywhere_at_once(unit_dir: Path) -> None:
    timer = Unit(unit_dir / "fastjournal-nightly.timer")["Timer"]

    assert timer["Persistent"] == "true"
    assert "RandomizedDelaySec" in timer


def test_systemd_timer_of_the_report_skips_no_night_in_which_clocks_go_forward(
    unit_dir: Path,
) -> None:
    calendar = Unit(unit_dir / "fastjournal-nightly.timer")["Timer"]["OnCalendar"]
    assert calendar.endswith(" UTC")
    if (analyze := shutil.which("systemd-analyze")) is None:
        pytest.skip("no systemd-analyze")
    line = [analyze, "calendar", "--base-time=2027-03-27 12:00:00", calendar]
    environment = os.environ | {"TZ": "Europe/Berlin", "LC_ALL": "C"}
    done = subprocess.run(line, env=environment, capture_output=True, text=True, check=True)
    assert "(in UTC): Sun 2027-03-28 02:30:00 UTC" in done.stdout


def test_config_example_names_the_directories_that_the_unit_creates(
    unit_dir: Path,
) -> None:
    config = unit_dir.parents[4] / "etc/fastjournal/fastjournald.toml"
    values = tomllib.loads(config.read_text(encoding="utf-8"))
    state = Unit(unit_dir / "fastjournald.service")["Service"]["StateDirectory"].split()

    assert {values["cmdlog_path"], values["snapshot_dir"]} <= {f"/var/lib/{name}" for name in state}


def test_systemd_service_of_the_nightly_run_has_its_temporary_files_in_its_cache(
    unit_dir: Path,
) -> None:
    path = unit_dir / "fastjournal-nightly.service"
    text = path.read_text(encoding="utf-8")
    cache = f"/var/cache/{Unit(path)['Service']['CacheDirectory']}"

    # of Spark, and of the export
    for name in ("SPARK_LOCAL_DIRS", "TMPDIR"):
        assert f"\nEnvironment={name}={cache}\n" in text


@needs_systemd_analyze
def test_systemd_analyze_verify_says_nothing(unit_dir: Path) -> None:
    done = subprocess.run(
        ["systemd-analyze", "verify", *(str(unit_dir / unit) for unit in UNITS)],
        capture_output=True,
        text=True,
        check=False,
    )

    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")


@needs_systemd_analyze
@pytest.mark.parametrize("name", SERVICES)
def test_service_is_hardened_to_an_exposure_of_at_most_1_5(unit_dir: Path, name: str) -> None:
    done = subprocess.run(
        ["systemd-analyze", "security", "--offline=true", "--no-pager", str(unit_dir / name)],
        capture_output=True,
        text=True,
        check=True,
    )

    level = re.search(rf"exposure level for {re.escape(name)}: ([0-9.]+)", done.stdout)
    assert level is not None, done.stdout
    assert float(level.group(1)) <= EXPOSURE_MAX
