"""Background tasks of the daemon: timers, compaction, scans, value loading."""
