"""Connection settings of fj-cli: from options, then the environment, then a file.

The files, the first that is there: ``$XDG_CONFIG_HOME/fastjournal/fj-cli.toml`` (usually
``~/.config/...``), ``/etc/fastjournal/fj-cli.toml``. The names in them are those of the options:
``server``, ``tls_ca``, ``tls_cert``, ``tls_key`` and ``auth_file``. TLS files and the token of such
a file are for its own server: they count only where no option and no variable names another one.
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence

from fastjournal.client.core.address import DEFAULT_ADDRESS, parse_address
from fastjournal.errors import BadRequestError, ConfigError
from fastjournal.options import ENVIRONMENT

ENVIRONMENT_NAME = "FASTJOURNAL_SERVER"
NAMES = ("server", *ENVIRONMENT)
SYSTEM_FILE = "/etc/fastjournal/fj-cli.toml"


def config_files(environment: Mapping[str, str]) -> list[str]:
    """Return the possible configuration files, the first one first."""
    home = environment.get("XDG_CONFIG_HOME") or os.path.expanduser("~/.config")
    return [os.path.join(home, "fastjournal", "fj-cli.toml"), SYSTEM_FILE]


def find_daemon(
    options: Mapping[str, str | None],
    environment: Mapping[str, str],
    files: Sequence[str | os.PathLike[str]],
) -> dict[str, str]:
    """Return the address of the daemon as ``server``, and what there is of TLS and the token.

    Args:
        options: Options of the command line, by name; None: not given.
        environment: Environment of the process.
        files: Configuration files, the first that is there counts.

    Raises:
        ConfigError: The address, or the file, is wrong; the message names where it came from.
    """
    found: dict[str, str] = {}
    source = "default"
    if (server := options.get("server")) is not None:
        source, found["server"] = "--server", server
    elif environment.get(ENVIRONMENT_NAME):
        source, found["server"] = ENVIRONMENT_NAME, environment[ENVIRONMENT_NAME]
    else:
        for file in files:
            content = _read(file)
            if content is not None:
                found |= content
                if "server" in content:
                    source = str(file)
                break
        found.setdefault("server", DEFAULT_ADDRESS)
    for name, variable in ENVIRONMENT.items():
        if value := options.get(name) or environment.get(variable):
            found[name] = value
    try:
        parse_address(found["server"])
    except BadRequestError as error:
        raise ConfigError(f"{source}: {error.message}", hint=error.hint) from error
    return found


def variables_of(settings: Mapping[str, str]) -> dict[str, str]:
    """Return the environment variables by which another fj-cli finds the same daemon.

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
            names = ", ".join(NAMES)
            raise ConfigError(f"unknown name {name!r}", path=file, hint=f"there are: {names}")
        if not isinstance(value, str):
            raise ConfigError(f"{name} is not a string", path=file, hint=f'write {name} = "..."')
    return content
