"""``fj-cli``: everything that a person or a script does with fastjournal.

main, cli, termination   the command line; errors as one sentence and an exit code; signals
commands, shared_options, examples   subcommands, a module for each subject; options
output, text, advice, progress               JSON and tables, without terminal escapes of data
worker, job, child, command_group, command_stderr, reports   ``next --exec``
top_screen, watching, records, entry_history, foreign_log   parts of ``top``, ``explain``, ``log``
benching, spool_lines    parts of ``bench`` and ``spool put``; help loads none of these parts
demo                     the demonstration
"""
