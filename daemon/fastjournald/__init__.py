"""fastjournald: the daemon. The write path of a request, each stage in the module of its name:

    session   receives bytes; the connection (fastjournal.protocol) makes requests of them
    engine    brings time up to date and finds the handler; from here to the journal all is pure
    handlers  decide what the request does to the state
    store     keeps keys and indexes in step, and tells the journal what changed
    journal   encodes records and appends them to the log's buffer
    commit    writes and syncs the buffer once for all sessions that wait
    sending   sends the replies, which no crash can undo any more

``server`` holds what sessions share, ``timers`` let time pass, ``recovery`` makes an engine from
the log, ``main`` reads options. docs/architecture.md has the whole picture.
"""
