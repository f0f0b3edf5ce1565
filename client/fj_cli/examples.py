"""Examples of each subcommand, for its help and manual page. A test runs them, in this order."""

from __future__ import annotations

EXAMPLES: dict[str, tuple[str, ...]] = {
    "set": (
        "fj-cli set greeting hello",
        "fj-cli set --domain pages --uri https://example.org/a 'first version'",
        "fj-cli set --uri https://example.net/",
        "fj-cli set --domain mails --not-before +10m --priority 10 'to be sent later'",
    ),
    "get": ("fj-cli get greeting", "fj-cli get https://example.org/a --probe"),
    "list": ("fj-cli list --prefix pages: --meta", "fj-cli list --regex '^https?://' --limit 20"),
    "domains": ("fj-cli domains", "fj-cli domains pa"),
    "peek": ("fj-cli peek pages --count 5",),
    "explain": ("fj-cli explain https://example.org/a",),
    "stats": ("fj-cli stats", "fj-cli stats pages"),
    "limit": ("fj-cli limit pages --interval 2s --jobs 1", "fj-cli limit pages"),
    "pause": ("fj-cli pause pages 10m",),
    "resume": ("fj-cli resume pages",),
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
    "delete": ("fj-cli delete welcome",),
    "purge": ("fj-cli purge mails --yes",),
    "top": ("fj-cli top --json --count 2 --interval 200ms",),
    "ping": ("fj-cli ping --count 3 --interval 10ms",),
    "bench": ("fj-cli bench --count 20 --connections 2",),
    "snapshot": ("fj-cli snapshot --keep 3",),
}


def with_examples(name: str, epilog: str | None) -> str | None:
    """Return the end of a subcommand's help, with its examples."""
    lines = EXAMPLES.get(name)
    if lines is None:
        return epilog
    text = "\n".join(["\b", "Examples:", *(f"  {line}" for line in lines)])
    return text if epilog is None else f"{epilog}\n\n{text}"
