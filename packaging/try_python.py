"""One interpreter tried: it builds and installs the project, and programs do their work.

    PYTHON packaging/try_python.py SDIST [OPTION OF PIP...]

All is done with native leaves, where the interpreter can compile them, and without.

It needs what PYTHON itself has, and stops with the first command that fails.
"""

import contextlib
import os
import shlex
import shutil
import subprocess
import sys
import sysconfig
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path

EXTRAS = "daemon,cli,forwarder,test"
START_S = 60

CLIENTS = """
import asyncio, sys
import trio
from fastjournal import Client, Spool, SyncClient

with SyncClient() as client:
    client.enqueue("tried", {"by": "sync"})
    client.jobs("tried", wait=None).run(lambda job: print(job.decoded()))

async def work(name):
    async with Client() as client:
        await client.enqueue("tried", {"by": name})
        async for job in client.jobs("tried", wait=None):
            print(job.decoded())

asyncio.run(work("asyncio"))
trio.run(work, "trio")
with Spool(sys.argv[1], durable=True) as spool:
    spool.append(domain="tried", uri="https://example.org/", value="spooled")
"""

SAID = '{"by":"sync"}\n{"by":"asyncio"}\n{"by":"trio"}\n'

TESTS = """
def test_fixture(fastjournal_daemon):
    with fastjournal_daemon.sync_client() as client:
        client.enqueue("mails", "hello", delay=60)
        fastjournal_daemon.advance(61)
        assert [job.value for job in client.jobs("mails", wait=None)] == [b"hello"]
"""


def compiles() -> bool:
    """Return whether the build finds a compiler and the headers of this interpreter."""
    compiler = shlex.split(os.environ.get("CC") or sysconfig.get_config_var("CC") or "none")[0]
    header = Path(sysconfig.get_path("include"), "Python.h")
    has_gil = not sysconfig.get_config_var("Py_GIL_DISABLED")
    return has_gil and header.exists() and shutil.which(compiler) is not None


def main(source: str, *options: str) -> None:
    """Install the source distribution into an environment that is thrown away, and use it."""
    with tempfile.TemporaryDirectory(prefix="fj-") as name:
        place = Path(name)
        programs = place / "venv/bin"
        environment = {key: value for key, value in os.environ.items() if "FASTJOURNAL" not in key}
        environment["FASTJOURNAL_SERVER"] = address = f"unix:{place}/socket"

        def run(program: str, *words: str) -> str:
            command = [str(programs / program), *words]
            done = subprocess.run(
                command, env=environment, cwd=place, capture_output=True, text=True, check=False
            )
            if done.returncode != 0:
                sys.exit(f"{' '.join(command)}: {done.returncode}\n{done.stdout}{done.stderr}")
            return done.stdout

        subprocess.run([sys.executable, "-m", "venv", str(place / "venv")], check=True)
        run("python", "-m", "pip", "install", "--quiet", *options, f"{source}[{EXTRAS}]")
        (place / "test_users.py").write_text(TESTS, encoding="utf-8")
        statuses = ("on", "off") if compiles() else ("not-built",)
        for status in statuses:
            environment["FASTJOURNAL_NATIVE"] = "0" if status == "off" else ""
            version = run("fj-cli", "--version").strip()
            assert version.endswith(f", native leaves {status})"), version
            use(place, environment, address, run)
            assert "1 passed" in run("python", "-m", "pytest", "-q", "test_users.py")
            print(f"tried: {version}", flush=True)


def use(
    place: Path, environment: "dict[str, str]", address: str, run: "Callable[..., str]"
) -> None:
    """Run a daemon, and all programs and clients on it."""
    ready, daemon_log = place / "ready", place / "daemon.log"
    ready.unlink(missing_ok=True)
    listen = ("--cmdlog-path", f"{place}/log", "--listen", address, "--ready-file", str(ready))
    with (
        daemon_log.open("wb") as log,
        _ended(
            subprocess.Popen(
                [place / "venv/bin/fastjournald", *listen], stderr=log, env=environment
            )
        ) as daemon,
    ):
        end_s = time.monotonic() + START_S
        while not ready.exists():
            if daemon.poll() is not None or time.monotonic() > end_s:
                sys.exit(f"{listen}: no start: {daemon_log.read_text()}")
            time.sleep(0.05)
        said = run("python", "-c", CLIENTS, str(place / "spool"))
        assert said == SAID, said
        run("fj-forwarder", "--spool", str(place / "spool"), "--once")
        said = run("fj-cli", "next", "tried", "--exec", "cat")
        assert "spooled" in said, said
        daemon.terminate()
        assert daemon.wait(START_S) == 0, "the daemon did not end well"


@contextlib.contextmanager
def _ended(process: "subprocess.Popen[bytes]") -> "Iterator[subprocess.Popen[bytes]]":
    """End a process behind a block, also after a failure."""
    try:
        yield process
    finally:
        if process.poll() is None:
            process.kill()
            process.wait()


if __name__ == "__main__":
    main(*sys.argv[1:])
