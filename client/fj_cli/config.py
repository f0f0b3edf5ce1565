"""Which daemon to talk to: ``--server``, then FASTJOURNAL_SERVER, then a configuration file.

The files, the first that is there: ``$XDG_CONFIG_HOME/fastjournal/fj-cli.toml`` (usually
``~/.config/...``), ``/etc/fastjournal/fj-cli.toml``. The one name in them is ``server``.
"""

from __future__ import annotations

import os
import tomllib
from collections.abc import Mapping
from pathlib import Path

from fastjournal.client.address import DEFAULT_ADDRESS, parse_address
from fastjournal.errors import BadRequestError, ConfigError

ENVIRONMENT_NAME = "FASTJOURNAL_SERVER"
SYSTEM_FILE = Path("/etc/fastjournal/fj-cli.toml")


def config_files(environment: Mapping[str, str]) -> list[Path]:
    """Return where a configuration file may stand, the first first."""
    home = environment.get("XDG_CONFIG_HOME") or os.path.expanduser("~/.config")
    return [Path(home) / "fastjournal" / "fj-cli.toml", SYSTEM_FILE]


def find_server(option: str | None, environment: Mapping[str, str], files: list[Path]) -> str:
    """Return the address of the daemon.

    Args:
        option: What ``--server`` says.
        environment: Of the process.
        files: Configuration files, the first that is there counts.

    Raises:
        ConfigError: The address, or the file, is wrong; the message names where it came from.
    """
    source, address = _choose(option, environment, files)
    try:
        parse_address(address)
    except BadRequestError as error:
        raise ConfigError(f"{source}: {error.message}", hint=error.hint) from error
    return address


def _choose(
    option: str | None, environment: Mapping[str, str], files: list[Path]
) -> tuple[str, str]:
    if option is not None:
        return "--server", option
    if environment.get(ENVIRONMENT_NAME):
        return ENVIRONMENT_NAME, environment[ENVIRONMENT_NAME]
    for file in files:
        try:
            text = file.read_text(encoding="utf-8")
        except (FileNotFoundError, NotADirectoryError):
            continue
        except (OSError, UnicodeDecodeError) as error:
            raise ConfigError(f"cannot be read: {error}", path=file) from error
        server = _server_in(text, file)
        return (str(file), server) if server is not None else ("default", DEFAULT_ADDRESS)
    return "default", DEFAULT_ADDRESS


def _server_in(text: str, file: Path) -> str | None:
    try:
        content = tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        raise ConfigError(f"is not TOML: {error}", path=file) from error
    for name in content:
        if name != "server":
            raise ConfigError(f"unknown name {name!r}", path=file, hint="the one name is 'server'")
    server = content.get("server")
    if server is not None and not isinstance(server, str):
        raise ConfigError("server is not a string", path=file, hint='write server = "HOST:PORT"')
    return server
