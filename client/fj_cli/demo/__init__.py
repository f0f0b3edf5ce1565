"""``fj-cli demo``: real change events through spool, forwarder, daemon and workers, and counted.

page_changes  the events of a file, and how often each page must be worked on
services      fastjournald and fj-forwarder as processes of their own
players       producer and worker processes
play          the order of events: slices of the file, a SIGKILL in the middle, the drain
history       four simulated weeks, whose log history_log writes, and their report
"""
