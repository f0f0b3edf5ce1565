"""fastjournald: the daemon. The write path of a request, from socket to disk and back:

    net/poller           polls the sockets, receives bytes, commits for all of them at once, and
                         sends; carries out what a session waits for
    net/session          one client's state machine, without IO: decodes requests
                         (fastjournal.protocol), and has the engine handle them one after the other
    engine/engine        applies deadlines and calls the handler; all is pure from here on
    engine/handlers      decide what a request does to entries
    engine/store         updates tables/ (indexes, queues, leases) together with the log
    wal/journal          encodes log records and appends them to the buffer of cmdlog/writer
    group_commit         one write and one sync for all sessions that wait
    net/outbox           replies, each with the mark that must be durable before it is sent

``server`` composes the parts and runs their tasks, ``runtime`` is what these share, ``recovery``
builds an engine from the log, ``main`` reads options (``config``, ``sighup``), ``process`` is ready
file and watchdog, ``standby`` runs before a node of a remote log serves. Beside requests:
``tasks``, ``compaction``, ``admission``, ``observability``, ``histogram``. ``testing`` is the
daemon in the process of a test, ``pytest_plugin`` its fixture. docs/architecture.md has the whole
picture.
"""
