"""Group commit: one write and one sync for all sessions that wait (``commit``).

A sync is in line while the disk is fast, and in one thread while it is slow. The first task that
waits is the commit leader. The first failed write or sync is the last: the daemon ends. With a
remote log, ``remote_commit`` stores the log in chunks, and replies wait for them too.
"""
