"""Fault-injecting fakes for tests of fastjournal and of programs that use it.

disk, inodes     a disk that fails the n-th sync, writes short, and loses what was not synced
object_store     an object store whose requests outlive their sender
clock            a clock that advances only when a test sets it
scripted_daemon  answers as a test says, over real sockets; ``ledger`` has what came
logs             segments of a command log, record by record
workq_rules      an executable model of workq
"""
