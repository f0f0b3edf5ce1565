"""One module for each subcommand of ``fj-cli``; each has a click command named ``command``.

``fj_cli.cli`` names them with their one-line help, and loads only the one that is run.
"""
