"""The subcommands of ``fj-cli``: click commands named after their words, as in ``spool put``.

requests                   subcommands that are one request with few arguments, as a table
set, get, next, lock       one entry, or a few: write, read, work, keep from others
domains, stats, top        a domain or the whole daemon: limits, figures, live
dead                       dead letters of queues: by error, retried, dropped
spool, spool_put, spool_dead   the local spool
log, export, import_, remote   logs and snapshots, those of other queues too; a remote log
bench, demo                load, and the demonstration

``fj_cli.cli`` names the commands with their modules, and loads only the one that is run.
"""
