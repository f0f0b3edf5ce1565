"""Examples of each subcommand, for its help and manual page. A test runs ``EXAMPLES``, in order."""

from __future__ import annotations

EXAMPLES: dict[str, tuple[str, ...]] = {
    "set": (
        "fj-cli set greeting hello",
        "fj-cli set --domain pages --uri https://example.org/a 'first version'",
        "fj-cli set --uri https://example.net/ 'first version'",
        "fj-cli set --domain mails --not-before +10m --priority 10 'to be sent later'",
    ),
    "get": ("fj-cli get greeting", "fj-cli get https://example.org/a --probe"),
    "list": ("fj-cli list --prefix pages: --meta", "fj-cli list --regex '^https?://' --limit 20"),
    "domains": ("fj-cli domains", "fj-cli domains pa"),
    "peek": ("fj-cli peek pages --count 5",),
    "explain": ("fj-cli explain https://example.org/a",),
    "stats": ("fj-cli stats", "fj-cli stats pages"),
    "workers": ("fj-cli workers", "fj-cli workers --queue pages"),
    "limit": ("fj-cli limit pages --interval 2s --jobs 1", "fj-cli limit pages"),
    "pause": ("fj-cli pause pages 10m", "fj-cli pause --all"),
    "resume": ("fj-cli resume pages", "fj-cli resume --all"),
    "next": (
        "fj-cli next pages --exec cat",
        "fj-cli next --timeout 30s --max-attempts 5 --exec sh -c 'echo \"$FASTJOURNAL_URI\"'",
        "fj-cli next pages --lease 10m",
    ),
    "add": ("fj-cli add hits --create", "fj-cli add hits 10"),
    "not": ("fj-cli set maintenance false --type boolean", "fj-cli not maintenance"),
    "truncate": ("fj-cli truncate greeting 4",),
    "link": ("fj-cli link greeting salute",),
    "rename": ("fj-cli rename greeting welcome",),
    "lock": ("fj-cli lock welcome sh -c 'echo nobody else writes it now'",),
    "touch": ("fj-cli touch welcome 1h",),
    "bury": ("fj-cli bury salute --reason 'asked for by nobody'",),
    "kick": ("fj-cli kick salute", "fj-cli kick --domain pages --all"),
    "dead list": ("fj-cli dead list", "fj-cli dead list --queue pages --each"),
    "dead retry": ("fj-cli dead retry --queue pages --older 0s --yes",),
    "dead drop": ("fj-cli dead drop --error 'SMTP 550' --older 7d --dry-run",),
    "delete": ("fj-cli delete welcome",),
    "purge": ("fj-cli purge mails --yes",),
    "top": ("fj-cli top --json --count 2 --interval 200ms",),
    "ping": ("fj-cli ping --count 3 --interval 10ms",),
    "bench": ("fj-cli bench --count 20 --connections 2",),
    "snapshot": ("fj-cli snapshot --keep 3",),
}

OTHER_EXAMPLES: dict[str, tuple[str, ...]] = {
    "release": ("fj-cli release pages:128:0:x 1795466592150315 --delay 10m",),
    "watch": ("fj-cli watch --prefix pages:", "fj-cli watch config"),
    "export": (
        "fj-cli export /var/lib/fastjournal/snapshots/20261120T120000Z s3://bucket/entries",
        "fj-cli export /var/lib/fastjournal/snapshots/20261120T120000Z binlog --to beanstalkd",
    ),
    "import beanstalkd": ("fj-cli import beanstalkd /var/lib/beanstalkd --set-limits",),
    "import kestrel": ("fj-cli import kestrel /var/spool/kestrel",),
    "import workq": ("fj-cli import workq /var/lib/workq",),
    "spool put": (
        "fj-cli spool put /var/spool/fastjournal --uri https://example.org/ 'first version'",
    ),
    "spool status": ("fj-cli spool status /var/spool/fastjournal",),
    "spool dead list": ("fj-cli spool dead list /var/spool/fastjournal",),
    "spool dead show": ("fj-cli spool dead show /var/spool/fastjournal NAME",),
    "spool dead retry": ("fj-cli spool dead retry /var/spool/fastjournal NAME",),
    "spool dead drop": ("fj-cli spool dead drop /var/spool/fastjournal NAME",),
    "log dump": ("fj-cli log dump /var/lib/fastjournal --segment 7",),
    "log stat": ("fj-cli log stat /var/lib/fastjournal",),
    "log verify": ("fj-cli log verify /var/lib/fastjournal",),
    "log repair": ("fj-cli log repair /var/lib/fastjournal --dry-run",),
    "remote create": ("fj-cli remote create s3://bucket/log",),
    "remote checkpoint": ("fj-cli remote checkpoint",),
    "remote handover": ("fj-cli remote handover",),
    "remote status": ("fj-cli remote status s3://bucket/log",),
    "remote verify": ("fj-cli remote verify s3://bucket/log",),
    "remote restore": (
        "fj-cli remote restore s3://bucket/log /var/lib/restored --until 2026-11-20T12:00Z",
    ),
    "token new": ("fj-cli token new /etc/fastjournal/token",),
    "demo": ("fj-cli demo --no-spark",),
}
"""Examples of subcommands that need files or other programs: a test checks their options."""


def with_examples(name: str, epilog: str | None) -> str | None:
    """Return the end of a subcommand's help, with its examples."""
    lines = EXAMPLES.get(name) or OTHER_EXAMPLES.get(name)
    if lines is None:
        return epilog
    text = "\n".join(["\b", "Examples:", *(f"  {line}" for line in lines)])
    return text if epilog is None else f"{epilog}\n\n{text}"
