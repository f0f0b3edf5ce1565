"""Options from a TOML file and the command line: validation of each, and of several together.

Each check names its options. A check of options of which one is wrong already is left out, so every
line of ``--check-config`` is a fault of its own.
"""

from __future__ import annotations

import os
import re
from collections.abc import Container, Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

import msgspec

from fastjournal.errors import ConfigError, StoreRefusedError
from fastjournal.options import flag
from fastjournal.printable import did_you_mean
from fastjournal.sockets import Place, Tcp, address_text, parse_http_place, parse_place
from fastjournald.config.options import DECLARED, Config
from fastjournald.config.socket_activation import NO_SOCKETS, ActivatedSockets


class Loaded(NamedTuple):
    """Options, and all that is wrong with them."""

    config: Config
    """An option that is wrong has its default, or its value if only other options forbid that."""
    errors: list[ConfigError]
    wrong: set[str]
    """Names of options that the errors are about."""


def load_config(
    file: str | None, flags: dict[str, object], handed_over: ActivatedSockets = NO_SOCKETS
) -> Config:
    """Return the options of a TOML file with those of the command line over them.

    Args:
        file: Path of the file; None: there is none.
        flags: Options of the command line, by attribute name.
        handed_over: Sockets of the service manager: their addresses are added to ``listen``, or
            take the place of its default, and of ``http``.

    Raises:
        ConfigError: The file cannot be read, or an option is unknown or has a bad value.
    """
    loaded = examine(file, flags, handed_over)
    for error in loaded.errors:
        raise error
    return loaded.config


def examine(file: str | None, flags: dict[str, object], handed_over: ActivatedSockets) -> Loaded:
    """Return the options as ``load_config`` does, with all errors.

    Raises:
        ConfigError: The file cannot be read, or is not TOML.
    """
    given = {} if file is None else _read(file)
    of_file = _convert(given, file)
    valid = {name: value for name, value in given.items() if name not in of_file.wrong}
    loaded = _convert(valid | flags, None)
    config, errors = loaded.config, of_file.errors + loaded.errors
    wrong = of_file.wrong | loaded.wrong
    listens = "listen" in valid or "listen" in flags
    for step in _steps(config, handed_over, listens=listens):
        if wrong.isdisjoint(step.options):
            found = list(step.errors)
            errors += found
            if found:
                wrong |= step.blamed
    return Loaded(config, errors, wrong)


class _CheckStep(NamedTuple):
    """A check of several options."""

    options: set[str]
    """Options that must be right by themselves."""
    blamed: set[str]
    """Options that are wrong if it finds an error."""
    errors: Iterator[ConfigError]
    """It runs while this is read."""


def _steps(config: Config, handed_over: ActivatedSockets, *, listens: bool) -> Iterator[_CheckStep]:
    """Yield the checks in their order: a later one takes what an earlier one has added."""
    yield _CheckStep({"listen"}, {"listen"}, _not_addresses(config.listen, "--listen"))
    yield _CheckStep({"http"}, {"http"}, _check_http(config))
    added = _add_handed_over(config, handed_over, listens=listens)
    yield _CheckStep({"listen", "http"}, {"http"}, added)
    yield _CheckStep({"cmdlog_path"}, {"cmdlog_path"}, _check_log(config))
    yield _CheckStep({"listen"}, {"listen"}, _check_listen(config))
    yield _CheckStep({"default_interval"}, {"default_interval"}, _check_interval(config))
    directories = {"cmdlog_path", "snapshot_dir", "archive_dir"}
    yield _CheckStep(directories, directories, _check_directories(config))
    archive = {"archive_dir", "archive_bytes_max"}
    others = {"cmdlog_path", "cmdlog_seg_size", "snapshot_dir"}
    yield _CheckStep(archive | others, archive, _check_archive(config))
    remote = {"remote_log", "repair", "remote_poll", "takeover_after"}
    yield _CheckStep(remote, remote, _check_remote(config))
    yield _CheckStep({"http"}, {"http"}, _check_http(config))
    tls = {"tls_cert", "tls_key", "tls_client_ca"}
    yield _CheckStep(tls, tls, _check_tls(config))
    access = tls | {"auth_tokens", "insecure"}
    for option in ("listen", "http"):
        refused = _check_access(config, option, getattr(handed_over, option))
        yield _CheckStep(access | {option}, {option}, refused)


def _read(file: str) -> dict[str, object]:
    import tomllib  # noqa: PLC0415 - a start without a file is faster

    try:
        return tomllib.loads(Path(file).read_text("utf-8"))
    except OSError as error:
        raise ConfigError(f"cannot read: {error.strerror}", path=file) from error
    except ValueError as error:
        # also a number of more digits than Python converts, which is none of tomllib's errors
        raise ConfigError(f"not TOML: {error}", path=file) from error
    except RecursionError:
        raise ConfigError("not TOML that can be read: nested too deep", path=file) from None


def _convert(values: dict[str, object], file: str | None) -> Loaded:
    """Return the options with these values, each converted alone."""
    errors: list[ConfigError] = []
    unknown = sorted(set(values) - set(Config.__struct_fields__))
    allowed = ", ".join(Config.__struct_fields__)
    errors += [
        ConfigError(
            f"{name}: no such option",
            path=file,
            hint=did_you_mean(name, Config.__struct_fields__) or f"there are: {allowed}",
        )
        for name in unknown
    ]
    wrong = set(unknown)
    for name, value in values.items():
        texts = value if isinstance(value, list) else [value]
        if any("\0" in text for text in texts if isinstance(text, str)):
            # no path and no address has one
            errors.append(
                ConfigError(f"{name}: it has a NUL character", path=file, hint="remove that")
            )
            wrong.add(name)
    while True:
        valid = {name: value for name, value in values.items() if name not in wrong}
        try:
            return Loaded(msgspec.convert(valid, Config), errors, wrong)
        except msgspec.ValidationError as error:
            text, _, where = str(error).partition(" - at `$.")
            name = re.split(r"[`\[]", where)[0]  # of one in a list: ``listen[0]``
            assert name in valid, "each round takes one away"
            shown = where.rstrip("`")
            shown = shown if file is not None else flag(shown)
            errors.append(ConfigError(f"{shown}: {text}", path=file, hint=DECLARED[name].hint))
            wrong.add(name)


def _not_addresses(texts: Sequence[str], option: str) -> Iterator[ConfigError]:
    for text in texts:
        try:
            parse_place(text, option)
        except ConfigError as error:
            yield error


def _add_handed_over(
    config: Config, handed_over: ActivatedSockets, *, listens: bool
) -> Iterator[ConfigError]:
    """Put the addresses of the service manager's sockets into the options."""
    given = config.listen if listens or not handed_over.listen else []
    places = [parse_place(text) for text in given]
    added = [address_text(place) for place in handed_over.listen if place not in places]
    config.listen = [*given, *added]
    for place in handed_over.http:
        if config.http and parse_place(config.http, "--http") != place:
            yield ConfigError(
                f"--http {config.http}: the service manager listens on {address_text(place)}",
                hint="name the same address, or none",
            )
        else:
            config.http = address_text(place)


def _check_log(config: Config) -> Iterator[ConfigError]:
    if not config.cmdlog_path:
        yield ConfigError("--cmdlog-path DIR is missing", hint="name the directory of the log")


def _check_listen(config: Config) -> Iterator[ConfigError]:
    if not config.listen:
        yield ConfigError("--listen: at least one address is needed")


def _check_interval(config: Config) -> Iterator[ConfigError]:
    """Refuse a limit that would be none."""
    if config.default_interval and not config.settings().interval_us_default:
        yield ConfigError(
            f"--default-interval {config.default_interval:g}: it rounds to 0 microseconds",
            hint="give 0 for none, or 0.000001 or more",
        )


def _check_directories(config: Config) -> Iterator[ConfigError]:
    """Refuse a URI, which would name a directory below the working directory: ``s3:/``."""
    for option, path in (
        ("--cmdlog-path", config.cmdlog_path),
        ("--snapshot-dir", config.snapshot_dir),
        ("--archive-dir", config.archive_dir),
    ):
        if "://" in path:
            yield ConfigError(
                f"{option} {path}: a URI, and no path of this machine", hint="name a directory"
            )


def _check_archive(config: Config) -> Iterator[ConfigError]:
    """Refuse archive bounds that cannot work, and a directory that has other files."""
    if not config.archive_dir:
        if config.archive_bytes_max:
            yield ConfigError("--archive-bytes-max without --archive-dir")
        return
    if 0 < config.archive_bytes_max < config.cmdlog_seg_size:
        yield ConfigError(
            f"--archive-bytes-max {config.archive_bytes_max}: less than one segment",
            hint=f"give 0 for no bound, or at least --cmdlog-seg-size, {config.cmdlog_seg_size}",
        )
    for option, path in (
        ("--cmdlog-path", config.cmdlog_path),
        ("--snapshot-dir", config.snapshot_directory),
    ):
        if os.path.realpath(path) == os.path.realpath(config.archive_dir):
            yield ConfigError(
                f"--archive-dir {config.archive_dir}: this is {option}",
                hint="name a directory that only the archive uses",
            )


def _check_remote(config: Config) -> Iterator[ConfigError]:
    """Refuse a URL that is of no object store, and what does not go with a remote log."""
    if not config.remote_log:
        return
    from fastjournal.remote.open_store import parse_store_url  # noqa: PLC0415 - slow to load

    try:
        parse_store_url(config.remote_log)
    except StoreRefusedError as error:
        yield ConfigError(f"--remote-log {error.message}", hint=error.hint)
    if config.repair:
        yield ConfigError(
            "--repair with --remote-log: the log is what the object store has",
            hint="an empty directory gets all of it; to repair the log before it is uploaded for"
            " the first time, start once without --remote-log",
        )
    if config.takeover_after * 1000 < 2 * config.remote_poll:
        yield ConfigError(
            f"--takeover-after {config.takeover_after}: less than two times --remote-poll",
            hint=f"give at least {-(-2 * config.remote_poll // 1000)}",
        )


def _check_http(config: Config) -> Iterator[ConfigError]:
    if config.http:
        try:
            parse_http_place(config.http, loopback_only=False)
        except ConfigError as error:
            yield error


def _check_tls(config: Config) -> Iterator[ConfigError]:
    """Refuse half of what TLS needs."""
    if bool(config.tls_cert) != bool(config.tls_key):
        there, missing = "--tls-cert", "--tls-key"
        if config.tls_key:
            there, missing = missing, there
        yield ConfigError(f"{there} without {missing}", hint="give both, or none")
    elif config.tls_client_ca and not config.tls_cert:
        yield ConfigError(
            "--tls-client-ca without --tls-cert and --tls-key", hint="give all three, or none"
        )


_COULD_DO = {
    "listen": "read and change everything",
    "http": "read the names of all domains and jobs",
}
"""What other machines could do at an address of an option."""


def _check_access(
    config: Config, option: str, handed_over: Container[Place]
) -> Iterator[ConfigError]:
    """Refuse options that give all clients access by mistake."""
    if config.tls_cert or config.auth_tokens or config.insecure:
        return
    for text in exposed_addresses(config, option):
        where = "LISTEN_FDS" if parse_place(text) in handed_over else flag(option)
        yield ConfigError(
            f"{where} {text}: other machines could {_COULD_DO[option]} there",
            hint="give --tls-cert and --tls-key, or --auth-tokens, or both; "
            "or --insecure if that is meant",
        )


def exposed_addresses(config: Config, option: str = "listen") -> list[str]:
    """Return the addresses of an option, ``listen`` or ``http``, that other machines may reach.

    Raises:
        ConfigError: One is no address.
    """
    texts = config.listen if option == "listen" else [config.http] if config.http else []
    places = ((text, parse_place(text)) for text in texts)
    return [text for text, place in places if isinstance(place, Tcp) and not place.is_loopback]
