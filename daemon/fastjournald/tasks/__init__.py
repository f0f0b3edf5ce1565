"""Background tasks of the daemon, each in turns that leave clients their time.

timers, turn_scheduler  due deadlines, waiting NEXTs; turns of the event loop
scan_runner             slices of all scans, fairly queued
value_loader            evicted values: eviction and loading
notifier                matching of changes with subscriptions
compactor, archiver, snapshots, free_space   files of the log
checkpoints             the log in the object store, and what of it nobody needs
"""
