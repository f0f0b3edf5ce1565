"""Group commit: one write and one sync for all sessions that wait; the thread for slow disks."""
