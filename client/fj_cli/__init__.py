"""``fj-cli``: everything that a person or a script does with fastjournal.

main, cli       the command line; errors as one sentence and an exit code; lazy loading of commands
commands        the subcommands, a module for each subject
output, text    JSON and tables, without terminal escapes of data
worker, job, child   ``next --exec``: leases, commands, signals
top_screen, entry_history, records, spool_lines   one subject each, for one command or more
demo            the demonstration
"""
