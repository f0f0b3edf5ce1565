"""The command ``fastjournald``: options, configuration check, recovery, the server, exit codes.

0   stopped by SIGTERM or SIGINT, everything synced
64  bad usage or configuration, or an object store that cannot be used
65  the directory, or the prefix of the object store, belongs to another log
69  an extra is not installed
74  an I/O error, or damage that needs --repair
75  another daemon holds the log
76  another node of the remote log has taken over: start again as a standby
130 SIGINT before requests were accepted

``--check-config`` says what would stop a start with these options.
"""

from __future__ import annotations

import gc
import logging
import os
import signal
import socket
import sys
from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import ExitStack, closing, contextmanager
from functools import partial
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, cast

import click
import trio

from fastjournal import _native, limits, program
from fastjournal.clock import SystemClock
from fastjournal.cmdlog.locks import lock_append, lock_read
from fastjournal.cmdlog.snapshot import remove_partial_snapshots
from fastjournal.cmdlog.writer import LogWriter
from fastjournal.disk import Disk, OsDisk
from fastjournal.errors import (
    ConfigError,
    ExtraMissingError,
    FastjournalError,
    FencedError,
    ForeignRemoteLogError,
    LogLockedError,
    StoreRefusedError,
    StoreUnavailableError,
)
from fastjournal.loglines import LogEvent, Sentence, configure_log
from fastjournal.options import version_option
from fastjournal.printable import safe_text
from fastjournal.program import (
    STOP_SIGNALS,
    drop_what_fails,
    prepare_stdio,
    raise_noted,
    stops_noted,
)
from fastjournal.remote.directory import REMOTE_FILE
from fastjournal.sockets import Unix, parse_place
from fastjournal.stderr_queue import queue_stderr
from fastjournald.config.command_line import OPTIONS
from fastjournald.config.load import Loaded, examine, load_config
from fastjournald.config.options import Config
from fastjournald.config.socket_activation import ActivatedSockets, take_over_sockets
from fastjournald.engine.context import Settings
from fastjournald.engine.engine import Engine
from fastjournald.net.credentials import RISKY, load_grants, load_security, load_tls, risks
from fastjournald.net.listeners import check_addresses
from fastjournald.process import (
    START_STEP_US_MAX,
    notify_watchdog,
    ping_watchdog,
    raise_file_limit,
    remove_ready_file,
    write_ready_file,
)
from fastjournald.recovery.recover import (
    Progress,
    make_archive_directory,
    open_archive,
    recover_engine,
    try_link,
)
from fastjournald.server import Server
from fastjournald.sighup import SERVING, Reloader, remember

if TYPE_CHECKING:
    from fastjournal.remote.node import Node, Primary


def problems(config: Config, wrong: Collection[str] = ()) -> Iterator[str]:
    """Yield the problems, one sentence each; nothing is written, locked or listened on.

    Args:
        config: Options; every value alone is valid.
        wrong: Names of options that are known to be wrong; these are left out.
    """
    if config.tls_cert and not {"tls_cert", "tls_key", "tls_client_ca"}.intersection(wrong):
        try:
            load_tls(config)
        except ConfigError as error:
            yield str(error)
    if config.auth_tokens:
        try:
            load_grants(config.auth_tokens)
        except ConfigError as error:
            yield str(error)
    if "listen" not in wrong:
        for text in config.listen:
            yield from _listen(text)
    if config.http and "http" not in wrong:
        yield from _listen(config.http, "--http")
    if "cmdlog_path" not in wrong:
        yield from _directories(config, wrong)
    if config.ready_file:
        parent = Path(config.ready_file).absolute().parent
        yield from _directory("--ready-file", str(parent), parent)


def _directories(config: Config, wrong: Collection[str]) -> Iterator[str]:
    log = _nearest(config.cmdlog_path)
    yield from _directory("--cmdlog-path", config.cmdlog_path, log)
    if "snapshot_dir" not in wrong:
        snapshots = _nearest(config.snapshot_directory)
        yield from _directory("--snapshot-dir", config.snapshot_directory, snapshots)
        if log.stat().st_dev != snapshots.stat().st_dev:
            yield (
                f"{config.snapshot_directory}: --snapshot-dir: is on another file system than the"
                " log; a snapshot is hard links"
            )
    if config.archive_dir and "archive_dir" not in wrong:
        archive = _nearest(config.archive_dir)
        yield from _directory("--archive-dir", config.archive_dir, archive)
        if log.stat().st_dev != archive.stat().st_dev:
            yield (
                f"{config.archive_dir}: --archive-dir: is on another file system than the log; "
                "the archive is hard links"
            )


def _listen(text: str, option: str = "--listen") -> Iterator[str]:
    place = parse_place(text, option)
    if isinstance(place, Unix):
        parent = Path(place.path).absolute().parent
        yield from _directory(f"{option} {text}", str(parent), parent)
        return
    try:
        socket.getaddrinfo(place.host, place.port, type=socket.SOCK_STREAM)
    except (OSError, UnicodeError) as error:
        yield f"{option} {text}: {getattr(error, 'strerror', None) or error}"


def _nearest(path: str) -> Path:
    """Return the path, or the first of its parents that is there."""
    here = Path(path).absolute()
    return next(at for at in (here, *here.parents) if at.exists())


def _directory(option: str, path: str, there: Path) -> Iterator[str]:
    """Look whether files can be made in a directory, or it itself in what is there of it."""
    if not there.is_dir():
        yield f"{path}: {option}: {there} is no directory"
    elif not os.access(there, os.R_OK | os.W_OK | os.X_OK):
        yield f"{path}: {option}: {there} cannot be written to by this user"


EXIT_USAGE = 64
EXIT_FOREIGN = 65
EXIT_UNAVAILABLE = 69
EXIT_IO = 74
EXIT_LOCKED = 75
EXIT_FENCED = 76
EXIT_INTERRUPTED = 128 + signal.SIGINT

EXIT_CODES: Sequence[tuple[type[FastjournalError], int]] = (
    (ConfigError, EXIT_USAGE),
    (StoreRefusedError, EXIT_USAGE),
    (ForeignRemoteLogError, EXIT_FOREIGN),
    (ExtraMissingError, EXIT_UNAVAILABLE),
    (LogLockedError, EXIT_LOCKED),
    (FencedError, EXIT_FENCED),
)
"""Exit codes of errors; of all others EXIT_IO."""

SWITCH_SECONDS = 0.0005
"""How long a thread that syncs the log waits for the interpreter at most: by default 5 ms, three
times a sync, and a reply waits for that while scans keep the event loop busy."""

LOG = logging.getLogger("fastjournald")


def new_command() -> click.Command:
    """Return the command line of the daemon."""
    command = click.Command(
        "fastjournald",
        params=list(OPTIONS),
        callback=_start,
        help="Serve a durable job queue: a write-ahead log on disk, indexes in memory.",
        epilog="Exit codes: 0 stopped, 64 bad usage, 65 another log, 69 an extra is missing,"
        " 74 I/O error or damage, 75 log in use, 76 another node has taken over.",
        context_settings={"help_option_names": ["-h", "--help"], "show_default": False},
    )
    return version_option("fastjournald")(command)


def main(arguments: Sequence[str] | None = None) -> None:
    """Run the command."""
    prepare_stdio()
    queue_stderr()
    try:
        status = new_command().main(args=arguments, standalone_mode=False)
    except click.ClickException as error:
        click.echo(safe_text(f"fastjournald: {error.format_message()}"), err=True)
        status = EXIT_USAGE
    except click.Abort:
        # SIGINT while the log is replayed: nothing was accepted yet
        status = EXIT_INTERRUPTED
    drop_what_fails()
    sys.exit(status or 0)


def _start(**options: object) -> int:
    file = None if options["config"] is None else str(options["config"])
    only_check = options["check_config"]
    del options["config"], options["check_config"]
    flags = {name: value for name, value in options.items() if value not in (None, ())}
    if "listen" in flags:
        flags["listen"] = list(cast("tuple[str, ...]", options["listen"]))
    try:
        handed_over = take_over_sockets()
        watchdog_s = program.watchdog_seconds()
        if only_check:
            return _check(examine(file, flags, handed_over))
        config = load_config(file, flags, handed_over)
    except ConfigError as error:
        click.echo(safe_text(f"fastjournald: {error}"), err=True)
        return EXIT_USAGE
    _configure_log(config)
    try:
        return _run(config, lambda: load_config(file, flags, handed_over), handed_over, watchdog_s)
    except FastjournalError as error:
        return _fail(error)
    except BaseExceptionGroup as group:
        ours, others = group.split(FastjournalError)
        if ours is None or others is not None:
            raise
        return _fail(first_leaf(ours))


def _check(loaded: Loaded) -> int:
    config = loaded.config
    wrong = [*map(str, loaded.errors), *problems(config, loaded.wrong)]
    warnings = [*risks(config)] if loaded.wrong.isdisjoint(RISKY) else []
    code = EXIT_USAGE if wrong else 0
    if config.remote_log and "remote_log" not in loaded.wrong:
        try:
            _ask_store(config.remote_log)
        except StoreUnavailableError as error:
            # a daemon waits for it
            warnings.append(f"--remote-log: {error}")
        except (ExtraMissingError, StoreRefusedError) as error:
            wrong.append(f"--remote-log: {error}")
            code = code or _exit_code(error)
    for sentence in wrong:
        click.echo(safe_text(f"fastjournald: {sentence}"), err=True)
    for sentence in warnings:
        click.echo(safe_text(f"fastjournald: warning: {sentence}"), err=True)
    if not wrong:
        click.echo("ok")
    return code


def _ask_store(url: str) -> None:
    """List something of the store of a remote log, which changes nothing; a directory is no store.

    Raises:
        FastjournalError: As a start does.
    """
    # a start without a remote log is faster
    from fastjournal.remote.objects import EPOCHS  # noqa: PLC0415
    from fastjournal.remote.open_store import open_store, parse_store_url  # noqa: PLC0415

    if not parse_store_url(url):
        open_store(url).list(EPOCHS, "", 1)


def _say_native() -> None:
    """Log why the native leaves do not run; all works without them, slower."""
    if _native.status is not _native.Status.ON:
        mismatch = _native.status is _native.Status.MISMATCH
        level = logging.WARNING if mismatch else logging.INFO
        event = LogEvent("native-leaves", status=str(_native.status), reason=_native.reason)
        LOG.log(level, event)


def _run(
    config: Config,
    load: Callable[[], Config],
    handed_over: ActivatedSockets,
    watchdog_s: float | None,
) -> int:
    # a signal that arrives during replay is kept, see _serve
    early_hangups: set[int] = set()
    signal.signal(signal.SIGHUP, lambda number, _frame: early_hangups.add(number))
    given = remember(config)
    security = load_security(config)
    _say_native()
    raise_file_limit(config)
    disk = OsDisk()
    with ExitStack() as locks:
        _prepare(disk, config, handed_over, locks)
        settings, clock = config.settings(), SystemClock()
        node, primary = None, None
        if config.remote_log:
            # a start without one is faster
            from fastjournald.standby import Standby, new_node  # noqa: PLC0415

            node = new_node(disk, config, settings, clock)
            node.stops = locks.enter_context(stops_noted())
            standby = Standby(node, config, clock, security, handed_over)
            primary = trio.run(standby.run, early_hangups, watchdog_s)
            if primary is None:
                LOG.info(LogEvent("stopped"))
                return 0
        else:
            require_no_remote_log(disk, config.cmdlog_path)
        sys.setswitchinterval(SWITCH_SECONDS)
        gc.disable()
        recovered = _recover(disk, config, settings, clock, node, primary, watchdog_s)
        if recovered is None:
            LOG.info(LogEvent("stopped"))
            return 0
        engine, writer = recovered
        if config.http:
            # before the freeze, so that no collection visits them; others do not need them
            import_module("fastjournald.observability.html_pages")
            # in a checkout it asks git, which takes too long for the event loop
            import_module("fastjournal.build_info").build_info()
        # A full collection visits every entry, 25 ms for a million. The engine makes no reference
        # cycles (tests/unit/test_garbage_collection.py). Timers.collect_garbage collects the young
        # cycles of tasks and exceptions.
        gc.freeze()
        archive = None
        if config.archive_dir:
            archive = open_archive(disk, config, engine.journal.usage, writer)
        server = Server(
            config,
            engine,
            writer,
            disk,
            clock,
            security=security,
            archive=archive,
            remote=primary,
            handed_over=handed_over,
        )
        early_stops = node.stops if node is not None else locks.enter_context(stops_noted())
        reloader = Reloader(server, given, load)
        if node is not None and server.checkpoints is not None:
            server.checkpoints.on_handover = node.give_up
        trio.run(_serve, server, reloader, early_hangups, early_stops, watchdog_s)
    LOG.info(LogEvent("stopped"))
    handed_over_log = server.checkpoints is not None and server.checkpoints.handover.is_set()
    return EXIT_FENCED if handed_over_log else 0


def _prepare(disk: Disk, config: Config, handed_over: ActivatedSockets, locks: ExitStack) -> None:
    """Lock the directories, and find out early what would stop the start."""
    disk.mkdir(config.cmdlog_path)
    locks.enter_context(closing(lock_append(disk, config.cmdlog_path)))
    # readers lock this file where it is there, and never make it
    lock_read(disk, config.cmdlog_path).close()
    if config.ready_file:
        # left by a daemon that was killed
        remove_ready_file(config.ready_file)
    for path in remove_partial_snapshots(disk, config.snapshot_directory):
        LOG.warning(LogEvent("removed", path=path, what="a snapshot that was interrupted"))
    if config.archive_dir:
        make_archive_directory(disk, config.cmdlog_path, config.archive_dir)
        locks.enter_context(closing(lock_append(disk, config.archive_dir)))
        try_link(disk, config.cmdlog_path, config.archive_dir)
    # a bad address shows before a long replay
    trio.run(check_addresses, config.listen, handed_over.listen)
    if config.http:
        trio.run(check_addresses, [config.http], handed_over.http, "--http")


def _recover(
    disk: Disk,
    config: Config,
    settings: Settings,
    clock: SystemClock,
    node: Node | None,
    primary: Primary | None,
    watchdog_s: float | None,
) -> tuple[Engine, LogWriter] | None:
    """Replay the log; None: SIGTERM or SIGINT ended a takeover.

    A primary gives signs of life meanwhile, and stores what the replay has written.
    """
    replay = partial(recover_engine, disk, config, settings, clock, seed=os.urandom(8), worker=True)
    if node is None or primary is None:
        return replay(on_progress=_progress)
    # it is loaded by now; a start without a remote log is faster
    from fastjournal.remote.node import StoppedError  # noqa: PLC0415

    try:
        with _replaying(node, primary, watchdog_s) as on_progress:
            engine, writer = replay(on_progress=on_progress, listed=True)

        def flush() -> None:
            writer.write()
            writer.sync()

        node.store_log(primary, flush)
    except StoppedError:
        LOG.info(LogEvent("stopping", reason="a signal came during the replay of a takeover"))
        program.notify("STOPPING=1")
        return None
    return engine, writer


def require_no_remote_log(disk: Disk, directory: str) -> None:
    """Raise ConfigError where the directory belongs to a remote log."""
    path = f"{directory}/{REMOTE_FILE}"
    if disk.exists(path):
        raise ConfigError(
            "the log belongs to a remote log, and --remote-log is missing",
            path=path,
            hint="give --remote-log URL; or remove this file, to go on without the remote log: what"
            " is written then, it never gets",
        )


@contextmanager
def _replaying(
    node: Node, primary: Primary, watchdog_s: float | None
) -> Iterator[Callable[[Progress], None]]:
    """Tell the progress of the replay in the block, and give signs of life meanwhile."""
    # the service manager may have been told READY: there is no event loop for a while
    notify_watchdog(START_STEP_US_MAX / 1_000_000, watchdog_s)
    with node.beating(primary) as look:

        def on_progress(progress: Progress) -> None:
            look()
            notify_watchdog(START_STEP_US_MAX / 1_000_000, watchdog_s)
            _progress(progress)

        yield on_progress
    notify_watchdog(watchdog_s, watchdog_s)


async def _serve(
    server: Server,
    reloader: Reloader,
    early_hangups: set[int],
    early_stops: list[int],
    watchdog_s: float | None,
) -> None:
    config = server.runtime.config
    stopped = trio.Event()
    nursery: trio.Nursery

    def ready(addresses: list[str]) -> None:
        LOG.info(LogEvent("ready", listen=",".join(addresses), http=tuple(server.http_addresses)))
        if config.ready_file:
            write_ready_file(config.ready_file, addresses)
        program.notify(SERVING)
        # its reloads end with READY=1, which must not come before that of the start
        nursery.start_soon(reloader.run)
        if watchdog_s is not None:
            nursery.start_soon(ping_watchdog, watchdog_s)

    with trio.open_signal_receiver(*STOP_SIGNALS, signal.SIGHUP) as signals:
        raise_noted(early_stops)

        async def watch_signals() -> None:
            # to the end: a second one changes nothing
            async for number in signals:
                if number == signal.SIGHUP:
                    reloader.request()
                    continue
                LOG.info(LogEvent("stopping", signal=signal.Signals(number).name))
                program.notify("STOPPING=1")
                stopped.set()

        async def watch_handover(asked: trio.Event) -> None:
            await asked.wait()
            LOG.info(LogEvent("stopping", reason="a client asked for a handover"))
            program.notify("STOPPING=1")
            stopped.set()

        try:
            async with trio.open_nursery() as nursery:
                nursery.start_soon(watch_signals)
                if server.checkpoints is not None:
                    nursery.start_soon(watch_handover, server.checkpoints.handover)
                if early_hangups:
                    reloader.request()
                await server.run(ready, stopped.wait)
                nursery.cancel_scope.cancel()
        finally:
            if config.ready_file:
                remove_ready_file(config.ready_file)


def _progress(progress: Progress) -> None:
    LOG.info(
        LogEvent(
            "recovering",
            segment=progress.segment,
            bytes=progress.bytes_done,
            of=progress.bytes,
            records=progress.records,
        )
    )
    percent = 100 * progress.bytes_done // max(progress.bytes, 1)
    program.notify(
        f"EXTEND_TIMEOUT_USEC={START_STEP_US_MAX}\n"
        f"STATUS=Recovering the log: {percent} %, {progress.records:,} records"
    )


def _configure_log(config: Config) -> None:
    configure_log(config.log_level, config.log_format)
    if config.max_value > limits.VALUE_BYTES_MAX:
        why = f"workq cannot replay a log with values over {limits.VALUE_BYTES_MAX} bytes"
        LOG.warning(LogEvent("not-for-workq", option="max-value", reason=why))
    for risk in risks(config):
        LOG.warning(LogEvent("risk", reason=Sentence(risk)))


def _fail(error: BaseException) -> int:
    assert isinstance(error, FastjournalError)
    LOG.error(LogEvent("failed", code=error.code, error=Sentence(error)))
    return _exit_code(error)


def _exit_code(error: FastjournalError) -> int:
    return next((code for kind, code in EXIT_CODES if isinstance(error, kind)), EXIT_IO)


def first_leaf(group: BaseExceptionGroup[FastjournalError]) -> BaseException:
    """Return the first error in a group of groups: the others follow from it."""
    error = group.exceptions[0]
    return first_leaf(error) if isinstance(error, BaseExceptionGroup) else error
