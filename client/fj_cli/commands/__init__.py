"""The subcommands of ``fj-cli``: click commands named after their words, ``spool_put_command``.

A module has the commands of one subject. ``requests`` declares those that are one request with few
arguments as a table. ``fj_cli.cli`` names them with module and one-line help, and loads only the
module that is run.
"""
