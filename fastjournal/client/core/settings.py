"""Connection settings of clients and programs: options, then the environment, then a file.

The files, the first that is there: ``$XDG_CONFIG_HOME/fastjournal/client.toml`` (usually
``~/.config/...``), ``/etc/fastjournal/client.toml``. The names in them are those of the options:
``server``, ``tls_ca``, ``tls_cert``, ``tls_key`` and ``auth_file``. TLS files and the token of such
a file are for its own server: they count only where no option and no variable names another one.
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from typing import Final

from fastjournal.client.core.address import DEFAULT_ADDRESS, parse_servers
from fastjournal.errors import BadRequestError, ConfigError
from fastjournal.options import CLIENT_FILE, ENVIRONMENT, flag
from fastjournal.printable import did_you_mean

ENVIRONMENT_NAME: Final = "FASTJOURNAL_SERVER"
NAMES: Final = ("server", *ENVIRONMENT)
SYSTEM_FILE: Final = f"/etc/fastjournal/{CLIENT_FILE}"


def config_files(environment: Mapping[str, str]) -> list[str]:
    """Return the possible configuration files, the first one first.

    A directory of the user that is no absolute path is left out: of some other user's working
    directory nobody takes settings.
    """
    home = environment.get("XDG_CONFIG_HOME") or os.path.join(
        environment.get("HOME") or os.path.expanduser("~"), ".config"
    )
    own = os.path.join(home, "fastjournal", CLIENT_FILE)
    return [own, SYSTEM_FILE] if os.path.isabs(home) else [SYSTEM_FILE]


class Settings(dict[str, str]):
    """Settings by name: ``server``, and what there is of TLS and the token."""

    def __init__(self) -> None:
        super().__init__()
        self.sources: dict[str, str] = {}
        """The option, the variable or the file of each that is no default."""

    def take(self, name: str, value: str, source: str) -> None:
        """Set one, over an earlier one."""
        self[name], self.sources[name] = value, source


def find_daemon(
    options: Mapping[str, str | None],
    environment: Mapping[str, str],
    files: Sequence[str | os.PathLike[str]],
) -> Settings:
    """Return the addresses of the daemon, and what there is of TLS and the token.

    Args:
        options: Options of the command line, by name; None: not given.
        environment: Environment of the process.
        files: Configuration files, the first that is there counts.

    Raises:
        ConfigError: An address, or the file, is wrong; the message names where it came from.
    """
    found = Settings()
    if (server := options.get("server")) is not None:
        found.take("server", server, "--server")
    elif environment.get(ENVIRONMENT_NAME):
        found.take("server", environment[ENVIRONMENT_NAME], ENVIRONMENT_NAME)
    else:
        for file in files:
            content = _read(file)
            if content is not None:
                for name, value in content.items():
                    found.take(name, value, str(file))
                break
    for name, variable in ENVIRONMENT.items():
        from_environment = environment.get(variable)
        given = options.get(name)
        if given and given != from_environment:
            found.take(name, given, flag(name))
        elif from_environment:
            found.take(name, from_environment, variable)
    try:
        parse_servers(found.setdefault("server", DEFAULT_ADDRESS))
    except BadRequestError as error:
        raise ConfigError(f"{found.sources['server']}: {error.message}", hint=error.hint) from error
    return found


def variables_of(settings: Mapping[str, str]) -> dict[str, str]:
    """Return the environment variables by which another program finds the same daemon.

    A token stays in its file: the variables name files only. Their paths are absolute, so that the
    program may change its directory.

    Args:
        settings: From ``find_daemon``.
    """
    variables = {ENVIRONMENT_NAME: settings["server"]}
    for name, variable in ENVIRONMENT.items():
        if path := settings.get(name):
            variables[variable] = os.path.abspath(path)
    return variables


def _read(file: str | os.PathLike[str]) -> dict[str, str] | None:
    """Return what a file says; None: there is none."""
    try:
        with open(file, encoding="utf-8") as opened:
            text = opened.read()
    except (FileNotFoundError, NotADirectoryError):
        return None
    except PermissionError as error:
        if not os.path.lexists(file):  # no look into its directory: a service, and /home is closed
            return None
        raise ConfigError(f"cannot be read: {error}", path=file) from error
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"cannot be read: {error}", path=file) from error
    import tomllib  # noqa: PLC0415 - few have such a file

    try:
        content = tomllib.loads(text)
    except ValueError as error:
        raise ConfigError(f"is not TOML: {error}", path=file) from error
    except RecursionError:
        raise ConfigError("is not TOML that can be read: nested too deep", path=file) from None
    for name, value in content.items():
        if name not in NAMES:
            hint = did_you_mean(name, NAMES) or f"there are: {', '.join(NAMES)}"
            raise ConfigError(f"unknown name {name!r}", path=file, hint=hint)
        if not isinstance(value, str):
            raise ConfigError(f"{name} is not a string", path=file, hint=f'write {name} = "..."')
    return content
