"""Command of a shell that the fork server starts: asks for the program, and stands for it.

``shell_commands.py`` writes scripts that call ``main`` here, without ``site`` and with built-in
modules only: such an interpreter starts in a tenth of the time of a program. The shell has this
process as its child. It gives its standard streams to the program, passes signals on to it, and
ends as the program ends. Where a fork would differ, it becomes the installed script itself.
"""

from __future__ import annotations

import sys
from _signal import SIG_DFL, SIG_IGN, getsignal, signal
from _socket import AF_UNIX, SCM_RIGHTS, SOCK_SEQPACKET, SOL_SOCKET, socket
from marshal import dumps
from posix import environ, execv, getcwd, getpid, kill

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import NoReturn

_PASSED_ON = (1, 2, 3, 10, 12, 15)
"""SIGHUP, SIGINT, SIGQUIT, SIGUSR1, SIGUSR2, SIGTERM."""

STARTED = b"started"
"""The first answer, if a program is forked; the second is the exit code, as ``Popen`` has it."""

_ANSWER_BYTES_MAX = 32

_STREAMS = b"".join(fd.to_bytes(4, sys.byteorder) for fd in (0, 1, 2))


def main(door: str, script: str) -> NoReturn:
    """Be the program of an installed script.

    Args:
        door: Path of the socket of ``shell_commands.py``.
        script: Path of the script.
    """
    channel = socket(AF_UNIX, SOCK_SEQPACKET)
    signals: list[int] = []
    started = False

    def pass_on(*came: object) -> None:
        signals.extend(number for number in came if type(number) is int)
        while started and signals:
            channel.send(bytes([signals.pop(0)]))

    for number in _PASSED_ON:
        if getsignal(number) != SIG_IGN:
            signal(number, pass_on)
    request = dumps(([script, *sys.argv[1:]], getcwd(), environ))
    try:
        channel.connect(door)
        channel.sendmsg([request], [(SOL_SOCKET, SCM_RIGHTS, _STREAMS)])
        started = channel.recv(_ANSWER_BYTES_MAX) == STARTED
    except OSError:
        # the door is closed, a stream is, or the request is too long
        pass
    if not started:
        for number in signals:
            end_by(number)
        execv(script, [script, *sys.argv[1:]])
    pass_on()
    code = int(channel.recv(_ANSWER_BYTES_MAX) or b"1")
    if code < 0:
        end_by(-code)
    sys.exit(code)


def end_by(number: int) -> None:
    """End by a signal, as the program did."""
    if getsignal(number) not in (SIG_DFL, None):
        signal(number, SIG_DFL)
    kill(getpid(), number)
