"""``fj-cli demo``: real change events through spool, forwarder, daemon and workers, and counted.

services      fastjournald and fj-forwarder as processes of their own
players       producer and worker processes; the events of a file, and how often each page is due
play          the order of events: slices of the file, a SIGKILL in the middle, the drain
history       four simulated weeks, whose log history_log writes, and their report
"""
