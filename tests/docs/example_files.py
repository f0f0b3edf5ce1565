"""Example configuration files systemd/*.example: generator, from the options of the programs.

``make pages`` writes them, and a test compares them.
"""

from __future__ import annotations

import json
import re
import textwrap
from pathlib import Path

import click

from fastjournal.client.core.settings import NAMES, SYSTEM_FILE
from fastjournal.options import ENVIRONMENT, HELP
from fastjournal.spark.nightly import command as nightly
from fastjournald.config.options import DECLARED
from fj_forwarder.main import command as forwarder
from tests.docs.reference_pages import allowed, meaning

ROOT = Path(__file__).parents[2]
DIRECTORY = ROOT / "systemd"

STATE = "/var/lib/fastjournal"
NEEDED_BY_THE_UNIT = {
    "cmdlog_path": f"{STATE}/cmdlog",
    "snapshot_dir": f"{STATE}/snapshots",
}
"""Options of the daemon that the example sets: directories that the unit creates."""

ARCHIVE = f"{STATE}/archive"
USUAL = {"archive_dir": ARCHIVE}
"""Options of the daemon whose example has another value than the default, which is off."""

REPORTS = "/var/lib/fastjournal-nightly"
SPOOL = "/var/spool/fastjournal"
SERVER = "127.0.0.1:9923"
FORWARDER_HTTP = "127.0.0.1:9925"
"""Where monitoring/prometheus.yml looks for its metrics."""

WIDTH = 98


def comment(text: str) -> list[str]:
    """Return a text as lines of a comment."""
    return [f"# {line}" for line in textwrap.wrap(" ".join(text.split()), WIDTH)]


def daemon_example() -> str:
    """Return the configuration file of the daemon: each option, with its default."""
    lines = comment(
        "Configuration of fastjournald: its options, with _ for -. Lines without # are needed by"
        " the unit file; the others show the defaults, except where it is said. An option of"
        " the command line has"
        " precedence. fastjournald --config FILE --check-config examines a file."
    )
    for option in DECLARED.values():
        text = meaning(option)
        if option.choices or option.kind not in (str, list):
            values = re.sub(r"(?<=\d),(?=\d)", "_", allowed(option).replace("`", ""))
            text += f" Allowed: {values}."
        lines += ["", *comment(text)]
        value = NEEDED_BY_THE_UNIT.get(option.name)
        mark = "" if value else "# "
        if option.name in USUAL:
            value = USUAL[option.name]
            lines += comment(
                "Default: off. The nightly report needs it for its history: throughput, times,"
                " failures. Set FASTJOURNAL_ARCHIVE in fastjournal-nightly.env then, or the archive"
                " grows without a reader."
            )
        lines.append(f"{mark}{option.name} = {json.dumps(value or option.default)}")
    return "\n".join(lines) + "\n"


def cli_example() -> str:
    """Return the configuration file of clients, with a place for each option."""
    lines = comment(
        f"Settings of the Python clients, fj-cli, fj-forwarder, fj-nightly: {SYSTEM_FILE}, or"
        " fastjournal/client.toml in ~/.config, which then counts alone. Options of the command"
        " line and variables of the environment have precedence. TLS files and token are for the"
        " server of this file only."
    )
    helps = {"server": "Address of the daemon: HOST:PORT, tls://HOST:PORT or unix:PATH."} | HELP
    values = {"server": SERVER}
    for name in NAMES:
        value = values.get(name, f"/etc/fastjournal/{name}")
        lines += ["", *comment(helps[name]), f"# {name} = {json.dumps(value)}"]
    return "\n".join(lines) + "\n"


def server_lines() -> list[str]:
    """Return the variable of the daemon's address, commented out."""
    text = f"The daemon. Default: that of {SYSTEM_FILE}, else {SERVER}."
    return ["", *comment(text), f"# FASTJOURNAL_SERVER={SERVER}"]


def forwarder_example() -> str:
    """Return the environment file of the unit of the forwarder."""
    lines = comment(
        "Environment of fj-forwarder.service, a variable a line. The one without a comment sign"
        " says what the unit does without this file."
    )
    helps = {
        str(each.name): each.help for each in forwarder.params if isinstance(each, click.Option)
    }
    text = str(helps["spool"]).partition(";")[0].rstrip(".")
    lines += ["", *comment(f"{text}."), f"FASTJOURNAL_SPOOL={SPOOL}"]
    lines += server_lines()
    for name, variable in ENVIRONMENT.items():
        lines += ["", *comment(str(helps[name])), f"# {variable}=/etc/fastjournal/{name}"]
    more = f"More options of fj-forwarder, such as --http: {helps['http']}"
    lines += ["", *comment(more), f"# FASTJOURNAL_FORWARDER_OPTIONS=--http {FORWARDER_HTTP}"]
    return "\n".join(lines) + "\n"


def nightly_example() -> str:
    """Return the environment file of the unit of the nightly analysis."""
    lines = comment(
        "Environment of fastjournal-nightly.service, a variable a line. The one without a comment"
        " sign says what the unit does without this file."
    )
    helps = {str(each.name): each.help for each in nightly.params if isinstance(each, click.Option)}
    lines += ["", *comment(str(helps["output"])), f"FASTJOURNAL_REPORTS={REPORTS}"]
    lines += server_lines()
    text = (
        f"{helps['archive']} Set archive_dir of fastjournald.toml to the same directory. Without it"
        " the report has no history. The unit may write in this one; for another one set"
        " ReadWritePaths= with systemctl edit fastjournal-nightly."
    )
    lines += ["", *comment(text), f"# FASTJOURNAL_ARCHIVE={ARCHIVE}"]
    lines += ["", *comment(str(helps["remote_log"])), f"# FASTJOURNAL_REMOTE_LOG={REMOTE_LOG}"]
    for name, variable in ENVIRONMENT.items():
        lines += ["", *comment(str(helps[name])), f"# {variable}=/etc/fastjournal/{name}"]
    return "\n".join(lines) + "\n"


REMOTE_LOG = "s3://bucket/prefix"
EXAMPLES = {
    "fastjournald.toml.example": daemon_example,
    "client.toml.example": cli_example,
    "fj-forwarder.env.example": forwarder_example,
    "fastjournal-nightly.env.example": nightly_example,
}


def main() -> None:
    """Write the files."""
    for name, content in EXAMPLES.items():
        (DIRECTORY / name).write_text(content(), encoding="utf-8")


if __name__ == "__main__":
    main()
