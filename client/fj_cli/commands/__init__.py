"""The subcommands of ``fj-cli``: click commands named after their words, ``spool_put_command``.

``fj_cli.cli`` names them with module and one-line help, and loads only the module that is run.
"""
