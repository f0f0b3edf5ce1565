"""Starts of the installed programs: a fork of a process that has imported the program already.

Hundreds of tests start a program of their own, and nearly all of such a start is imports.
``Program`` is ``subprocess.Popen``, but a child that would run an installed script of this project
is forked by a server (``fork_server.py``), which has imported what the entry point of that script
names. It is a process like any other, with its own memory, descriptors, signals and exit code; it
gets arguments, environment, directory and standard streams as ``Popen`` would give them. It is a
child of this process, and killed when this process dies.

A new interpreter runs the script itself where a fork could differ:

- ``own_interpreter=True``, for tests of all the resident memory (it grows in a fork as it does in a
  new interpreter), of ``/proc``, of what an import does, of the installed script, for the soak and
  for benchmarks;
- other commands, also a shell that runs the script, and options of ``Popen`` that are not in
  ``_FORK_OPTIONS``, as a new session or process group;
- variables of the environment that an interpreter (but for ``PYTHONIOENCODING``), a C library or
  an import reads;
- limits, umask, ignored signals or other inherited state that is not as it was when pytest began;
- everything, outside pytest (``tests/conftest.py`` opens the servers), where the variable
  ``FJ_TESTS_OWN_INTERPRETER`` is set, and where there is no Linux.
"""

from __future__ import annotations

import ctypes
import fcntl
import inspect
import json
import os
import signal
import socket
import subprocess
import sys
import sysconfig
import termios
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from importlib.metadata import distribution
from pathlib import Path
from typing import Any, TypeVar

from tests.integration.fork_server import MESSAGE_BYTES_MAX

PRELOADED: dict[str, tuple[str, ...]] = {
    "fastjournald": ("fastjournald.main", "encodings.idna", "fastjournald.observability.*"),
    "fj-forwarder": ("fj_forwarder.main", "anyio._backends._trio"),
    "fj-cli": ("fj_cli.*", "fastjournal.client.sync"),
    "fj-nightly": (
        "fastjournal.spark.nightly",
        "fastjournal.spark.nightly.run",
        "fastjournal.spark.data_source.registration",
    ),
}
"""The programs that are forked, with the modules that their runs import besides."""

ONE_THREAD = {"OPENBLAS_NUM_THREADS": "1", "JE_ARROW_MALLOC_CONF": "background_thread:false"}
"""Variables with which the imports of a server start no thread: numpy and Arrow have some."""

SERVER = str(Path(__file__).with_name("fork_server.py"))

_FORK_OPTIONS = {"stdin", "stdout", "stderr", "env", "cwd", "text"}

_READ_AT_START = (
    *("PYTHON", "LC_", "LANG", "LD_", "MALLOC_", "GLIBC_", "TZ", "OPENSSL_", "SSL_"),
    "FASTJOURNAL_NATIVE",
)
"""How the variables begin that are read before a program looks at its environment."""

_READ_BY_SERVER = "PYTHONIOENCODING"
"""The one of them that a fork follows as a new interpreter does."""

_INHERITED = ("Umask", "SigBlk", "SigIgn", "Uid", "Gid", "Groups", "Cap", "Cpus_allowed:")
"""Lines of /proc/self/status."""

_OF_THE_C_LIBRARY = (32, 33)
"""Signals below SIGRTMIN: ignored after ``posix_spawn``, as of make, until a thread uses them."""

_PR_SET_CHILD_SUBREAPER = 36

STOP_S = 60.0
"""Far longer than an orderly end takes, so that a loaded machine fails no test."""


def installed(command: str) -> str:
    """Return the path of a command of this project, as it was installed beside this Python."""
    return str(Path(sysconfig.get_path("scripts")) / command)


def entry_point(command: str) -> str:
    """Return what the installed script of a command calls, as ``module:function``."""
    scripts = distribution("fastjournal").entry_points.select(group="console_scripts")
    return scripts[command].value


def command_with(command: str, **constants: float) -> list[str]:
    """Return a command line that is this command but for some constants, in a new interpreter.

    Args:
        command: Name of a command of this project.
        constants: Names in ``fastjournal.limits``, for a patience that a test need not have.
    """
    module, _, function = entry_point(command).partition(":")
    lines = [
        "from fastjournal import limits",
        *(f"limits.{name} = {value}" for name, value in constants.items()),
        f"from {module} import {function}",
        f"{function}()",
    ]
    return [sys.executable, "-c", "; ".join(lines)]


class ForkServer:
    """A process that has imported a program, and forks for each start of it.

    Args:
        script: The script that starts the program otherwise.
        targets: The function that it calls, then more to import; each ``module:name``.
    """

    def __init__(self, script: str, *targets: str) -> None:
        self._channel, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self._lock = threading.Lock()
        with theirs:
            self._process = subprocess.Popen(
                [sys.executable, SERVER, str(theirs.fileno()), script, *targets],
                env=os.environ | ONE_THREAD,
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                pass_fds=[theirs.fileno()],
            )

    def start(self, message: bytes, descriptors: list[int]) -> int:
        """Start the program, with these standard streams, as a child of this process."""
        with self._lock:
            _adopt_orphans(True)
            try:
                socket.send_fds(self._channel, [message], descriptors)
                answer = self._channel.recv(MESSAGE_BYTES_MAX)
            except ConnectionError:
                answer = b""
            finally:
                _adopt_orphans(False)
        assert answer, "the fork server has ended: standard error has the reason"
        return int(answer)

    def close(self) -> None:
        """Let the server end; the programs go on."""
        self._channel.close()
        self._process.wait()


def _adopt_orphans(wanted: bool) -> None:
    assert not ctypes.CDLL(None).prctl(_PR_SET_CHILD_SUBREAPER, int(wanted), 0, 0, 0)


def request_to_start(
    args: list[str],
    directory: str,
    environment: dict[str, str],
    *,
    in_front: bool = False,
    ignored: Sequence[int] = (),
) -> bytes:
    """Return the request to ``ForkServer.start`` for a program.

    Args:
        args: The path of its script, and its arguments.
        directory: Where it runs.
        environment: All of its variables.
        in_front: It leads a new session, in front on the terminal of its standard output.
        ignored: Signals that it ignores as it starts.
    """
    request = {
        "parent": os.getpid(),
        "args": args,
        "cwd": directory,
        "env": environment,
        "in_front": in_front,
        "ignored": list(ignored),
    }
    return json.dumps(request).encode()


class ForkServers:
    """The servers of this process: one for each program, started when it is needed first."""

    def __init__(self) -> None:
        self._inherited = inherited(os.environ)
        self._servers: dict[str, ForkServer] = {}
        self._lock = threading.Lock()

    def find(self, script: str | bytes, options: Mapping[str, Any]) -> ForkServer | None:
        """Return the server of a script, if its forks are what a start with these options gives."""
        environment = os.environ if options.get("env") is None else options["env"]
        if not options.keys() <= _FORK_OPTIONS:
            return None
        return self.find_for(script, lambda: inherited(environment))

    def find_for(
        self, script: str | bytes, state: Callable[[], tuple[object, ...]]
    ) -> ForkServer | None:
        """Return the server of a script, if its forks inherit what ``state`` returns."""
        name = os.path.basename(os.fsdecode(script))
        if name not in PRELOADED or script != installed(name) or state() != self._inherited:
            return None
        with self._lock:
            if name not in self._servers:
                targets = entry_point(name), *PRELOADED[name]
                self._servers[name] = ForkServer(installed(name), *targets)
            return self._servers[name]

    def close(self) -> None:
        """End them."""
        for server in self._servers.values():
            server.close()


def inherited(
    environment: Mapping[str, str], process: str = "thread-self", ignored: Sequence[int] = ()
) -> tuple[object, ...]:
    """Return what a child with this environment inherits from this thread, or has inherited.

    Args:
        environment: Variables of the child.
        process: The child, if it runs: its number.
        ignored: Signals that it ignores, and that are taken for not ignored.
    """
    status = Path(f"/proc/{process}/status").read_text().splitlines()
    state = dict(line.split(":\t", 1) for line in status if line.startswith(_INHERITED))
    mask = int(state["SigIgn"], 16)
    for number in (*ignored, *_OF_THE_C_LIBRARY):
        mask &= ~signal_bit(number)
    return (
        {
            name: value
            for name, value in environment.items()
            if name.startswith(_READ_AT_START) and name != _READ_BY_SERVER
        },
        state | {"SigIgn": mask},
        Path(f"/proc/{process}/limits").read_text(),
        os.getpriority(os.PRIO_PROCESS, int(process) if process.isdigit() else 0),
        [os.readlink(f"/proc/{process}/ns/{kind}") for kind in ("mnt", "net", "user")],
    )


def signal_bit(number: int) -> int:
    """Return the bit of a signal in the masks of ``/proc``."""
    return 1 << number - 1


def take_terminal() -> None:
    """Put a process that leads a new session in front on the terminal of its standard output."""
    fcntl.ioctl(1, termios.TIOCSCTTY, 0)
    signal.signal(signal.SIGINT, signal.SIG_DFL)  # a job in the background has it ignored


_fork_servers: ForkServers | None = None


def open_fork_servers() -> None:
    """From now on, fork programs; from now on also, this is what they inherit."""
    global _fork_servers  # noqa: PLW0603 - one for the whole run
    if sys.platform == "linux" and "FJ_TESTS_OWN_INTERPRETER" not in os.environ:
        _fork_servers = ForkServers()


def open_servers() -> ForkServers | None:
    """Return the servers of this process; None: nothing is forked."""
    return _fork_servers


def close_fork_servers() -> None:
    """End all fork servers of this process; nothing is forked any more."""
    global _fork_servers
    servers, _fork_servers = _fork_servers, None
    if servers is not None:
        servers.close()


class Program(subprocess.Popen[Any]):
    """``subprocess.Popen`` whose child is forked by a server, if it is a program of this project.

    Args:
        args: The path that ``installed`` gives, and the arguments.
        own_interpreter: Start the script itself, in a new interpreter.
        in_front: Standard output is a terminal; start it in a new session with that terminal.
        options: As ``subprocess.Popen`` takes them.
    """

    def __init__(
        self,
        args: Sequence[str | bytes],
        *,
        own_interpreter: bool = False,
        in_front: bool = False,
        **options: Any,
    ) -> None:
        servers = None if own_interpreter else _fork_servers
        self._in_front = in_front
        self._server = servers and servers.find(args[0], options)
        if in_front and self._server is None:
            options |= {"start_new_session": True, "preexec_fn": take_terminal}
        super().__init__(args, **options)

    def _execute_child(self, *given: Any) -> None:
        how = _EXECUTE.bind(self, *given).arguments
        pipes = [how[name] for name in _PIPES]
        # the ends of the child, or the streams of this process
        streams = [
            number if end == -1 else end for number, end in enumerate((pipes[0], *pipes[3::2]))
        ]
        environment = os.environ if how["env"] is None else how["env"]
        message = request_to_start(
            [os.fsdecode(argument) for argument in how["args"]],
            os.fsdecode(how["cwd"] or os.getcwd()),
            {os.fsdecode(k): os.fsdecode(v) for k, v in environment.items()},
            in_front=self._in_front,
        )
        if self._server is None or len(message) > MESSAGE_BYTES_MAX:
            assert self._server is None or not self._in_front, "too long to be forked"
            super()._execute_child(*given)
            return
        self.pid = self._server.start(message, streams)
        self._child_created = True
        self._close_pipe_fds(*pipes)


_EXECUTE = inspect.signature(subprocess.Popen._execute_child)
_PIPES = ("p2cread", "p2cwrite", "c2pread", "c2pwrite", "errread", "errwrite")


def run_program(
    args: Sequence[str | bytes],
    *,
    input: bytes | str | None = None,
    timeout: float | None = None,
    check: bool = False,
    capture_output: bool = False,
    **options: Any,
) -> subprocess.CompletedProcess[Any]:
    """``subprocess.run`` for the programs of this project."""
    if input is not None:
        options["stdin"] = subprocess.PIPE
    if capture_output:
        options |= {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
    with Program(args, **options) as process:
        try:
            output, said = process.communicate(input, timeout)
        except BaseException:  # interrupted too: the program must not outlive the test
            process.kill()
            raise
    done = subprocess.CompletedProcess(process.args, process.returncode, output, said)
    if check:
        done.check_returncode()
    return done


AnyProcess = TypeVar("AnyProcess", bound=subprocess.Popen[Any])


@contextmanager
def ended(process: AnyProcess) -> Iterator[AnyProcess]:
    """See that a process does not outlive the block."""
    try:
        yield process
    finally:
        process.kill()
        process.wait()


@contextmanager
def forwarding(
    spool: Path, server: str, *options: str, command: Sequence[str] = (), **streams: Any
) -> Iterator[Program]:
    """Run a forwarder that is there still at the end of the block, and ends well by SIGTERM.

    Args:
        spool: Its directory.
        server: Address of its daemon.
        options: More of its command line.
        command: From ``command_with``; none: the installed one.
        streams: As ``subprocess.Popen`` takes them.
    """
    line = [*(command or [installed("fj-forwarder")]), "--spool", str(spool), "--server", server]
    with ended(Program([*line, *options], **streams)) as process:
        yield process
        assert process.poll() is None, "it ended by itself"
        # a block that is left at once would end it before it knows how to end
        while not catches(process.pid, signal.SIGTERM):
            assert process.poll() is None, "it ended by itself"
            time.sleep(0.01)
        process.send_signal(signal.SIGTERM)
        assert process.wait(STOP_S) == 0


def catches(pid: int, number: signal.Signals) -> bool:
    """Whether a process has a handler of a signal."""
    status = Path(f"/proc/{pid}/status").read_text(encoding="ascii")
    [caught] = [line.split()[1] for line in status.splitlines() if line.startswith("SigCgt:")]
    return bool(int(caught, 16) >> (number - 1) & 1)
