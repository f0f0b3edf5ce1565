"""fj-forwarder: sends what is in a spool to the daemon, and erases what is safe there.

The path of a record: ``slotfile`` reads it from its slot, ``delivery`` looks whether it can go,
``engine`` decides when it is, ``forwarder`` moves the bytes, ``engine`` and ``verdicts`` say what
the reply means, ``delivery`` and ``slotfile`` erase it. ``store`` knows all slots of the spool.
"""
