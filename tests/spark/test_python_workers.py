"""Python of Spark's workers in tests: what is forked is what the interpreter would be."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.integration.test_fork_server import is_dead

from tests.integration.worker_process import wait_until
from tests.spark.python_workers import PythonWorkers

MODULE = """
import json, os, sys
told = {"args": sys.argv[1:], "cwd": os.getcwd(), "mark": os.environ.get("MARK")}
told |= {"name": __name__, "parent": os.getppid(), "seed": hash("seed")}
print(json.dumps(told), flush=True)
sys.stdin.read()
sys.exit(7)
"""

DYING = """
import os, signal, sys
from pathlib import Path
from tests.spark.python_workers import PythonWorkers
workers = PythonWorkers(Path(sys.argv[1]))
workers.start()
print(workers._server.pid, flush=True)
os.kill(os.getpid(), signal.SIGKILL)
"""


@pytest.fixture(scope="module")
def workers(tmp_path_factory: pytest.TempPathFactory) -> Iterator[PythonWorkers]:
    workers = PythonWorkers(tmp_path_factory.mktemp("workers"))
    workers.start()
    yield workers
    workers.stop()


def start(workers: PythonWorkers, directory: Path, *args: str) -> subprocess.Popen[str]:
    (directory / "module_of_a_test.py").write_text(MODULE)
    return subprocess.Popen(
        [workers.interpreter, *args],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        cwd=directory,
        env=os.environ | {"MARK": "here", "PYTHONHASHSEED": "0"},
        text=True,
    )


def test_worker_python_is_a_fork_with_what_spark_gives_it(
    workers: PythonWorkers, tmp_path: Path
) -> None:
    with start(workers, tmp_path, "-m", "module_of_a_test", "one", "two") as process:
        assert process.stdout is not None
        told = json.loads(process.stdout.readline())
        assert told.pop("parent") not in (process.pid, os.getpid())
        command = [sys.executable, "-c", "print(hash('seed'))"]
        seed = subprocess.check_output(command, env=os.environ | {"PYTHONHASHSEED": "0"})
        assert told == {
            "args": ["one", "two"],
            "cwd": str(tmp_path),
            "mark": "here",
            "name": "__main__",
            "seed": int(seed),
        }
        process.communicate("")
    assert process.returncode == 7


def test_worker_python_ends_when_spark_ends_the_interpreter(
    workers: PythonWorkers, tmp_path: Path
) -> None:
    with start(workers, tmp_path, "-m", "module_of_a_test") as process:
        assert process.stdout is not None
        assert process.stdout.readline()
        process.send_signal(signal.SIGTERM)
        # the fork has the other end of it, while it lives
        assert process.stdout.read() == ""
    assert process.returncode == -signal.SIGTERM


def test_interpreter_that_spark_asks_for_code_is_no_fork(
    workers: PythonWorkers, tmp_path: Path
) -> None:
    with start(workers, tmp_path, "-c", "import os; print(os.getpid())") as process:
        assert process.communicate("")[0] == f"{process.pid}\n"
    assert process.returncode == 0


def test_server_of_worker_pythons_dies_with_the_process_of_the_tests(tmp_path: Path) -> None:
    command = [sys.executable, "-c", DYING, str(tmp_path)]
    done = subprocess.run(command, stdout=subprocess.PIPE, check=False)
    assert done.returncode == -signal.SIGKILL
    wait_until(lambda: is_dead(int(done.stdout)))
