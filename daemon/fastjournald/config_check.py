"""Configuration check (``--check-config``): what would stop a start with these options."""

from __future__ import annotations

import os
import socket
from collections.abc import Collection, Iterator
from pathlib import Path

from fastjournal.errors import ConfigError
from fastjournal.sockets import Unix, parse_place
from fastjournald.config.options import Config
from fastjournald.net.credentials import load_grants, load_tls


def problems(config: Config, wrong: Collection[str] = ()) -> Iterator[str]:
    """Say what is wrong, sentence by sentence; nothing is written, locked or listened on.

    Args:
        config: Options of which every value by itself is valid.
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


def _listen(text: str) -> Iterator[str]:
    place = parse_place(text)
    if isinstance(place, Unix):
        parent = Path(place.path).absolute().parent
        yield from _directory(f"--listen {text}", str(parent), parent)
        return
    try:
        socket.getaddrinfo(place.host, place.port, type=socket.SOCK_STREAM)
    except (OSError, UnicodeError) as error:
        yield f"--listen {text}: {getattr(error, 'strerror', None) or error}"


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
