"""Remote log: every acknowledged change in an object store, and another machine that takes over.

docs/remote-log.md is the contract. The rules are generators without
clock, file, socket or randomness: they yield requests and are sent the answers. The random walks of
tests/property/test_remote_log_model.py carry out the same code.

objects      names, chunk header, contents of the objects
store        requests, and what a store promises
reader       reading to the end of the log, takeover, standby
writer       chunks of an epoch, fencing, when a primary may answer
checkpoints  upload, garbage collection, adoption
directory    a log directory beside the store: what is kept, fetched, set aside
status       who writes, and how much a restore reads
node         adoption, standby, takeover, and the epoch that a primary has won
local_log    a node's log directory becomes what the remote log says
restore      a directory from the store; verification
cloud_store, file_store, open_store   stores of services, of a directory; the store of a URL
"""
