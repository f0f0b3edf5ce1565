"""Reference pages of the site: generator, from declarations of the code and their docstrings.

``make docs`` builds them into the site, so that no file of them can be out of date.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from pathlib import Path

import click
import msgspec
import trio
from prometheus_client.registry import Collector

import fastjournal
import fastjournal.tasks
from fastjournal import errors, limits
from fastjournal.disk import DiskSpace
from fastjournal.spool.forwarder_status import ForwarderStatus
from fastjournald.config.options import DECLARED, UNITS, DeclaredOption
from fastjournald.observability.metrics import Metrics
from fj_forwarder.http_metrics import ForwarderMetrics
from tests.docs.manual_pages import PROGRAMS, context_of, subcommands
from tests.docs.protocol_pages import attribute_docs, errors_table
from tests.observed_daemon import ObservedDaemon

API_GROUPS = {
    "Clients": ("SyncClient", "Client", "Reconnect"),
    "Work": ("Job", "JobLoop", "Jobs", "SyncJob", "SyncJobLoop", "FailedAttempt"),
    "Subscriptions": ("Change", "ChangeKind", "Listener", "SyncListener", "Mirror"),
    "Results": ("Entry", "Page", "Written", "Meta", "State", "ValueType"),
    "Statistics": ("DaemonStats", "DomainStats", "EntryStats", "EntryExplanation"),
    "Keys, URIs and times": (
        "JournalKey",
        "build_journal_key",
        "parse_journal_key",
        "domain_of",
        "Duration",
        "Instant",
        "WAIT_WITHOUT_END",
    ),
    "Spool": ("Spool",),
}
"""Names of ``fastjournal`` by topic; those of exceptions follow, and names that no topic has."""

IDLE_FORWARDER = ForwarderStatus(
    **{
        field.name: [] if "list" in str(field.type) else 0
        for field in msgspec.structs.fields(ForwarderStatus)
    }
)
"""Status of which only the names of its metrics matter."""

MADE_AT_RUN_TIME = ("SyncClient", "Client")
"""Classes whose methods ``add_methods`` makes: they are inspected, and not only parsed."""


def table(head: tuple[str, ...], rows: list[tuple[str, ...]]) -> list[str]:
    """Return a table in Markdown."""
    lines = [f"| {' | '.join(cells)} |" for cells in (head, ("---",) * len(head), *rows)]
    return [*lines, ""]


def cell(text: str) -> str:
    """Return a text for one cell of a table."""
    return " ".join(text.split()).replace("|", "\\|")


def errors_page() -> str:
    """Return the error codes of the protocol, and the exceptions of the library."""
    names = [name for name in dir(errors) if name.endswith("Error")]
    classes = sorted((getattr(errors, name) for name in names), key=lambda kind: kind.__name__)
    rows = [
        (
            f"[`{kind.__name__}`][fastjournal.{kind.__name__}]",
            f"`{kind.__base__.__name__}`",
            f"`{kind.code}`",
            cell(kind.__doc__.strip().partition("\n")[0]),
        )
        for kind in classes
    ]
    return "\n".join(
        [
            "# Errors: codes of the protocol, exceptions of the library",
            "",
            "## Error codes",
            "",
            "A daemon refuses a request with one of these codes and a sentence. `RefusedError.code`"
            " and the errors of `fj-cli` have it.",
            "",
            *errors_table(),
            "",
            "## Exceptions",
            "",
            "The code of a `RefusedError` is that of the daemon's refusal.",
            "",
            *table(("exception", "base class", "code", "meaning"), rows),
        ]
    )


def options_page() -> str:
    """Return the options of the daemon's configuration file, with their bounds."""
    rows = []
    for option in DECLARED.values():
        shown = msgspec.json.encode(option.default).decode()
        rows.append((f"`{option.name}`", f"`{shown}`", allowed(option), cell(meaning(option))))
    return "\n".join(
        [
            "# Configuration of the daemon",
            "",
            "Names, defaults and bounds of the TOML file that `fastjournald --config` reads. On the"
            " command line, which has precedence, `_` is `-`: `--max-connections`."
            " [Operating](../operating.md#options) says which of them change the guarantees.",
            "",
            *table(("name", "default", "allowed", "meaning"), rows),
        ]
    )


def meaning(option: DeclaredOption) -> str:
    """Return the help of an option and its unit."""
    unit = UNITS.get(option.unit)
    return f"{option.help} {unit.capitalize()}." if unit else option.help


def allowed(option: DeclaredOption) -> str:
    """Return the values that an option allows, in words."""
    if option.choices:
        return ", ".join(f"`{value}`" for value in sorted(option.choices))
    if option.kind is bool:
        return "`true`, `false`"
    if option.kind is list:
        return "list of texts"
    bounds = option.bounds
    if option.kind is str:
        return f"text of the form `{cell(bounds.pattern)}`" if bounds.pattern else "text"
    whole = "" if option.kind is int else ", also fractions"
    return f"{bounds.ge:,} to {bounds.le:,}{whole}"


def metrics_page() -> str:
    """Return all metrics of ``/metrics``, with type and labels."""
    daemon = ObservedDaemon(memory_limit=2**28, remote=True)
    daemon.server.runtime.counters.disk_space = DiskSpace(0, 0)
    metrics = Metrics(daemon.server.runtime)
    trio.run(metrics.text)
    return "\n".join(
        [
            "# Metrics",
            "",
            "A histogram has the series `_bucket`, `_sum` and `_count`.",
            "",
            "## Daemon",
            "",
            "`fastjournald --http` serves these at `/metrics`."
            " [Operating](../operating.md#health-and-metrics) has the advice, and the alerts.",
            "",
            *family_rows(metrics),
            "## Forwarder",
            "",
            "`fj-forwarder --http` serves these at `/metrics`.",
            "",
            *family_rows(ForwarderMetrics(lambda: IDLE_FORWARDER)),
        ]
    )


def family_rows(collector: Collector) -> list[str]:
    """Return the table of the metrics that a collector gives."""
    rows = []
    for family in collector.collect():
        labels = ", ".join(f"`{label}`" for label in getattr(family, "_labelnames", ()))
        name = f"{family.name}_total" if family.type == "counter" else family.name
        text = cell(family.documentation).removesuffix(".")
        rows.append((f"`{name}`", family.type, labels, text))
    return table(("metric", "type", "labels", "meaning"), rows)


def limits_page() -> str:
    """Return the bounds of fastjournal.limits, by section, with their reasons."""
    lines = ["# Limits", "", "Each bound of the programs and the library, and its reason.", ""]
    source = Path(limits.__file__).read_text(encoding="utf-8")
    docs = attribute_docs(limits)
    for section in re.split(r"^# --- ", source, flags=re.MULTILINE)[1:]:
        head, _, body = section.partition("\n")
        names = re.findall(r"^([A-Z][A-Z0-9_]+)(?:: .+)? = ", body, re.MULTILINE)
        rows = [(f"`{name}`", _value(getattr(limits, name)), docs.get(name, "")) for name in names]
        lines += [f"## {head.rstrip(' -').capitalize()}", ""]
        lines += table(("name", "value", "reason"), [(a, b, cell(c)) for a, b, c in rows])
    return "\n".join(lines)


def _value(value: object) -> str:
    return f"{value:,}" if isinstance(value, int | float) else f"`{cell(repr(value))}`"


def command_page(name: str) -> str:
    """Return the manual of a program in Markdown, of which docs/man has the same text."""
    manual = PROGRAMS[name]
    context = context_of(manual.command, name)
    lines = [f"# {name}: {manual.summary}", "", *usage(context), *help_text(manual.command.help)]
    lines += ["## Options", "", *option_rows(context)]
    if isinstance(manual.command, click.Group):
        for inner in subcommands(context):
            lines += [f"## {inner.command_path}", "", *usage(inner)]
            lines += [*help_text(inner.command.help), *option_rows(inner)]
            lines += help_text(inner.command.epilog)
    return "\n".join([*lines, *notes(manual.command.epilog)])


def notes(epilog: str | None) -> list[str]:
    """Return the end of the help of a program under a heading, where there is one."""
    return ["## Notes", "", *help_text(epilog)] if epilog else []


def usage(context: click.Context) -> list[str]:
    """Return the line of the usage of a command."""
    pieces = " ".join(context.command.collect_usage_pieces(context))
    return ["```text", f"{context.command_path} {pieces}", "```", ""]


def option_rows(context: click.Context) -> list[str]:
    """Return the table of the options of a command."""
    rows = []
    for parameter in context.command.get_params(context):
        record = parameter.get_help_record(context)
        if isinstance(parameter, click.Option) and record is not None:
            rows.append((f"`{cell(record[0])}`", escaped(cell(record[1]))))
    return table(("option", "meaning"), rows) if rows else []


def help_text(text: str | None) -> list[str]:
    """Return a help text; a paragraph that begins with ``\\b`` keeps its lines, as in click."""
    return list(_paragraphs(text or ""))


def _paragraphs(text: str) -> Iterator[str]:
    for paragraph in re.split(r"\n\s*\n", "\n".join(map(str.strip, text.splitlines()))):
        if paragraph.startswith("\b"):
            yield from ["```text", *paragraph.lstrip("\b\n").splitlines(), "```", ""]
        elif paragraph.strip():
            yield from [escaped(" ".join(paragraph.split())), ""]


def escaped(text: str) -> str:
    """Return text of a help of which Markdown takes nothing as markup."""
    text = text.replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;")
    return re.sub(r"([\\`*_\[\]])", r"\\\1", text)


def api_page() -> str:
    """Return the directives for the public names of the library; mkdocstrings follows them."""
    grouped = {name for names in API_GROUPS.values() for name in names}
    exceptions = [name for name in fastjournal.__all__ if name.endswith("Error")]
    rest = [name for name in fastjournal.__all__ if name not in {*grouped, *exceptions}]
    groups = {**API_GROUPS, "Exceptions": tuple(exceptions)}
    if rest:
        groups["More"] = tuple(rest)
    lines = [
        "# Python API",
        "",
        "All public names of `fastjournal`. Its modules `fastjournal.protocol`,"
        " `fastjournal.cmdlog`, `fastjournal.spool` and `fastjournal.spark` have more;"
        " `help()` of Python shows them.",
        "",
    ]
    for head, names in groups.items():
        lines += [f"## {head}", ""]
        for name in names:
            lines += [f"::: fastjournal.{name}", "    options:", "      heading_level: 3"]
            lines += ["      force_inspection: true"] * (name in MADE_AT_RUN_TIME) + [""]
    lines += ["## Tasks", ""]
    for name in fastjournal.tasks.__all__:
        lines += [f"::: fastjournal.tasks.{name}", "    options:", "      heading_level: 3", ""]
    return "\n".join(lines)


def index_page() -> str:
    """Return the list of the reference pages."""
    rows = [(f"[{text}]({name})", origin) for name, (text, origin, _) in PAGES.items()]
    return "\n".join(
        [
            "# Reference",
            "",
            "The pages of the reference are made from the code when the site is built.",
            "",
            *table(("page", "made from"), rows),
        ]
    )


def _command(name: str) -> tuple[str, str, Callable[[], str]]:
    return (name, f"the options of `{name}`, as its manual page", lambda: command_page(name))


PAGES: dict[str, tuple[str, str, Callable[[], str]]] = {
    "configuration.md": ("Configuration", "the type of the configuration file", options_page),
    **{f"{name}.md": _command(name) for name in PROGRAMS},
    "api.md": ("Python API", "docstrings", api_page),
    "errors.md": ("Errors", "the codes of the protocol, and the exceptions", errors_page),
    "metrics.md": ("Metrics", "a scrape", metrics_page),
    "limits.md": ("Limits", "the module of all bounds", limits_page),
}
"""Name of the file below ``reference/``: title, origin, generator."""


def reference_pages() -> dict[str, str]:
    """Return the text of each page of the reference, by path in the site."""
    pages = {f"reference/{name}": make() for name, (_, _, make) in PAGES.items()}
    return {"reference/index.md": index_page(), **pages}
