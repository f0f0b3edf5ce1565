"""fastjournald: the daemon. The write path of a request, each stage in the module of its name:

    net.session       receives bytes; the codec (fastjournal.protocol) makes requests of them
    engine.engine     advances the time and finds the handler; pure from here to the journal
    engine.handlers   decide what the request does to the state
    engine.store      keeps keys and indexes in step, and tells the journal what changed
    wal.journal       encodes records and appends them to the log writer's buffer
    group_commit      writes and syncs the buffer once for all sessions that wait
    net.outbox        holds each reply until no crash can undo what it shows

``runtime`` has what tasks and sessions share, ``tasks`` are background tasks, ``recovery`` makes an
engine from the log, ``main`` reads options. docs/architecture.md has the whole picture.
"""
