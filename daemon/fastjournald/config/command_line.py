"""Command line of the daemon: a flag for each option of the configuration file, and some more."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

UNITS = {"MS": "milliseconds", "BYTES": "bytes", "S": "seconds"}
"""Units of numbers, by the word that stands for the value in the help."""


if TYPE_CHECKING:
    NumberParamType = click.ParamType[int | float]
else:
    # generic only since click 8.4
    NumberParamType = click.ParamType


class Number(NumberParamType):
    """Number of an option, without a unit behind it.

    Args:
        unit: Word that stands for the value in the help.
        kind: Type of the number.
    """

    def __init__(self, unit: str, kind: type[int | float] = int) -> None:
        self.name = unit
        self.hint = number_hint(unit, is_whole=kind is int)
        self._kind = kind

    def convert(
        self, value: object, param: click.Parameter | None, ctx: click.Context | None
    ) -> int | float:
        """Return the number."""
        try:
            return self._kind(str(value))
        except ValueError:
            self.fail(f"{str(value)!r}: {self.hint}", param, ctx)


def number_hint(unit: str, *, is_whole: bool) -> str:
    """Return the advice for a value that is none."""
    of_what = f" of {UNITS[unit]}, without a unit" if unit in UNITS else ""
    return f"give a {'whole ' if is_whole else ''}number{of_what}"


def _number(*names: str, unit: str, help: str) -> click.Option:
    return click.Option(names, type=Number(unit), metavar=unit, help=help)


def _file(name: str, help: str) -> click.Option:
    return click.Option([name], metavar="FILE", help=help)


OPTIONS: list[click.Parameter] = [
    click.Option(
        ["--config"], metavar="FILE", help="TOML file with these options, _ for -; flags win."
    ),
    click.Option(
        ["--listen"],
        multiple=True,
        metavar="HOST:PORT|unix:PATH",
        help="Address to listen on, repeatable; port 0 picks one.  [127.0.0.1:9923]",
    ),
    click.Option(
        ["--check-config"],
        is_flag=True,
        help="Check options and files, and exit: 0 no error, 64 errors.",
    ),
    click.Option(
        ["--ready-file"],
        metavar="PATH",
        help="File written when requests are accepted: one bound address a line.",
    ),
    click.Option(["--cmdlog-path"], metavar="DIR", help="Directory of the command log.  Required."),
    click.Option(
        ["--cmdlog-sync"],
        type=click.Choice(["always", "interval", "os"]),
        help="Sync of the log: before each OK, each interval, or by the system.  [always]",
    ),
    _number("--cmdlog-sync-int", unit="MS", help="Interval of the sync policy interval.  [1000]"),
    _number("--cmdlog-clean-int", unit="MS", help="Interval of log compaction; 0: none.  [300000]"),
    _number("--cmdlog-seg-size", unit="BYTES", help="Size of a log segment.  [67108864]"),
    _number("--max-value", unit="BYTES", help="Largest value.  [1000000]"),
    _number("--max-reply", unit="BYTES", help="Largest reply of several entries.  [4194304]"),
    click.Option(["--socket-mode"], metavar="OCTAL", help="Mode of unix sockets.  [0660]"),
    _file("--tls-cert", "Certificate chain (PEM); TCP connections use TLS.  [off]"),
    _file("--tls-key", "Key of the certificate, mode 0600 or 0640."),
    _file("--tls-client-ca", "Authorities whose certificates clients need (mutual TLS).  [off]"),
    _file("--auth-tokens", "Tokens and their rights, mode 0600: clients need AUTH.  [off]"),
    _number("--auth-timeout", unit="S", help="Longest time of a client until AUTH.  [10]"),
    click.Option(
        ["--insecure"],
        is_flag=True,
        default=None,
        help="Allow --listen addresses of other machines without TLS and tokens.",
    ),
    _number("--max-connections", unit="N", help="Connections at once; more get busy.  [10000]"),
    _number("--max-inflight", unit="BYTES", help="Memory of all connections.  [268435456]"),
    _number("--request-timeout", unit="S", help="Time from first to last byte of a request.  [60]"),
    _number("--send-timeout", unit="S", help="Time until a client reads of its replies.  [300]"),
    _number("--idle-timeout", unit="S", help="Time without requests; 0: no limit.  [86400]"),
    _number(
        "--memory-limit",
        unit="BYTES",
        help="Memory limit: more values are on the disk only; 0: no limit.  [0]",
    ),
    _number("--min-free-bytes", unit="BYTES", help="Free space; read-only with less.  [67108864]"),
    _number("--default-lease", unit="S", help="Lease of a NEXT without a timeout.  [86400]"),
    _number("--max-attempts", unit="N", help="Failed attempts until buried; 0: no limit.  [0]"),
    _number("--retry-delay", unit="S", help="Delay after a first failed attempt; doubles.  [1]"),
    _number("--retry-delay-max", unit="S", help="Longest delay after a failed attempt.  [3600]"),
    click.Option(
        ["--default-interval"],
        type=Number("S", float),
        metavar="S",
        help="Least time between two deliveries of a domain without LIMIT; 0: none.  [0]",
    ),
    _number(
        "--default-jobs",
        unit="N",
        help="Most leased entries of a domain without LIMIT; 0: no limit.  [0]",
    ),
    _number("--tombstone-ttl", unit="S", help="Time that tombstones of deletions stay.  [3600]"),
    _number("--tombstones-max", unit="N", help="Number of tombstones at most.  [1000000]"),
    _number(
        "--tombstones-bytes-max", unit="BYTES", help="Memory of tombstones at most.  [536870912]"
    ),
    _number("--max-clock-skew", unit="S", help="Most time a client's clock is ahead.  [60]"),
    _number("--max-postpone", unit="S", help="Most delay that SETs add to a URI; 0: any.  [3600]"),
    click.Option(
        ["--snapshot-dir"], metavar="DIR", help="Directory of snapshots.  [<cmdlog-path>/snapshots]"
    ),
    click.Option(
        ["--archive-dir"],
        metavar="DIR",
        help="Sealed segments are linked there before the log is cleaned.  [off]",
    ),
    _number(
        "--archive-bytes-max", unit="BYTES", help="Beyond it, the oldest go; 0: any size.  [0]"
    ),
    click.Option(
        ["--repair"],
        is_flag=True,
        default=None,
        help="Repair damage in the log: keep the bytes aside, list the losses, and start.",
    ),
    click.Option(
        ["--http"],
        metavar="HOST:PORT",
        help="HTTP address of the page, metrics and health, loopback only.  [off]",
    ),
    click.Option(
        ["--log-level"],
        type=click.Choice(["debug", "info", "warning", "error"]),
        help="Lowest level of log lines on standard error.  [info]",
    ),
    click.Option(
        ["--log-format"],
        type=click.Choice(["text", "json"]),
        help="Form of log lines: text, or one JSON object a line.  [text]",
    ),
]
