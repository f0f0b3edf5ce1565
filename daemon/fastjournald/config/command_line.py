"""Command line of the daemon: a flag for each option of the configuration file, and some more."""

from __future__ import annotations

import click


def _number(*names: str, unit: str, help: str) -> click.Option:
    return click.Option(names, type=int, metavar=unit, help=help)


def _file(name: str, help: str) -> click.Option:
    return click.Option([name], metavar="FILE", help=help)


OPTIONS: list[click.Parameter] = [
    click.Option(["--config"], metavar="FILE", help="TOML file; names as here with _, flags win."),
    click.Option(
        ["--listen"],
        multiple=True,
        metavar="HOST:PORT|unix:PATH",
        help="Address to listen on, repeatable; port 0 picks one.  [127.0.0.1:9923]",
    ),
    click.Option(
        ["--check-config"],
        is_flag=True,
        help="Say what is wrong with options and files, and exit: 0 nothing, 64 something.",
    ),
    click.Option(
        ["--ready-file"],
        metavar="PATH",
        help="Written once requests are accepted: one bound address a line.",
    ),
    click.Option(["--cmdlog-path"], metavar="DIR", help="Directory of the command log.  Required."),
    click.Option(
        ["--cmdlog-sync"],
        type=click.Choice(["always", "interval", "os"]),
        help="When OK means on disk: always, each interval, or when the system likes.  [always]",
    ),
    _number("--cmdlog-sync-int", unit="MS", help="Interval of that policy.  [1000]"),
    _number(
        "--cmdlog-clean-int", unit="MS", help="How often the log is cleaned; 0: never.  [300000]"
    ),
    _number("--cmdlog-seg-size", unit="BYTES", help="Size of a log segment.  [67108864]"),
    _number("--max-value", unit="BYTES", help="Largest value.  [1000000]"),
    _number("--max-reply", unit="BYTES", help="Largest reply of several entries.  [4194304]"),
    click.Option(["--socket-mode"], metavar="OCTAL", help="Mode of unix sockets.  [0660]"),
    _file("--tls-cert", "Certificate, and what leads to its authority: TCP speaks TLS.  [off]"),
    _file("--tls-key", "Its key, mode 0600 or 0640."),
    _file("--tls-client-ca", "Clients need a certificate that one of these signed.  [off]"),
    _file("--auth-tokens", "Tokens and their rights, mode 0600: clients need AUTH.  [off]"),
    _number("--auth-timeout", unit="S", help="So long a client may take until AUTH.  [10]"),
    click.Option(
        ["--insecure"],
        is_flag=True,
        default=None,
        help="Let --listen name addresses of other machines without TLS and tokens.",
    ),
    _number("--max-connections", unit="N", help="Clients at once; more get busy.  [10000]"),
    _number("--max-inflight", unit="BYTES", help="Held for all connections.  [268435456]"),
    _number("--request-timeout", unit="S", help="From a request's begin to its end.  [60]"),
    _number("--send-timeout", unit="S", help="Until a client takes some of its replies.  [300]"),
    _number("--idle-timeout", unit="S", help="Silence of a connection; 0: off.  [86400]"),
    _number(
        "--memory-limit",
        unit="BYTES",
        help="Beyond it, values are on the disk only; 0: all stay in memory.  [0]",
    ),
    _number("--min-free-bytes", unit="BYTES", help="Less free space: read-only mode.  [67108864]"),
    _number("--default-lease", unit="S", help="Lease of a NEXT that names none.  [86400]"),
    _number("--max-attempts", unit="N", help="Failed attempts until buried; 0: no limit.  [0]"),
    _number("--retry-delay", unit="S", help="Delay after a first failed attempt; doubles.  [1]"),
    _number("--retry-delay-max", unit="S", help="Longest delay after a failed attempt.  [3600]"),
    click.Option(
        ["--default-interval"],
        type=float,
        metavar="S",
        help="Least time between two hand-outs of a domain without LIMIT; 0: none.  [0]",
    ),
    _number(
        "--default-jobs",
        unit="N",
        help="Entries of a domain without LIMIT that are leased at once; 0: any number.  [0]",
    ),
    _number("--tombstone-ttl", unit="S", help="How long deletions are remembered.  [3600]"),
    _number("--tombstones-max", unit="N", help="How many deletions are.  [1000000]"),
    _number(
        "--tombstones-bytes-max", unit="BYTES", help="Memory that these may take.  [536870912]"
    ),
    _number("--max-clock-skew", unit="S", help="How far ahead a client's clock may be.  [60]"),
    _number("--max-postpone", unit="S", help="How far SETs put off a URI; 0: any time.  [3600]"),
    click.Option(
        ["--snapshot-dir"], metavar="DIR", help="Where snapshots go.  [<cmdlog-path>/snapshots]"
    ),
    click.Option(
        ["--repair"],
        is_flag=True,
        default=None,
        help="Go on after damage inside the log: keep the bytes aside and list what is lost.",
    ),
    click.Option(
        ["--http"],
        metavar="HOST:PORT",
        help="Metrics and health by HTTP, on a loopback address; port 0 picks one.  [off]",
    ),
    click.Option(
        ["--log-level"],
        type=click.Choice(["debug", "info", "warning", "error"]),
        help="Least level of the lines on standard error.  [info]",
    ),
]
