"""``fj-cli``: everything that a person or a script does with fastjournal.

``main`` runs the command line and turns errors into one sentence and an exit code; ``commands``
has one module for each subcommand, loaded when it is used.
"""
