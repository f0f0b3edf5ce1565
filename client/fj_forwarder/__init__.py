"""fj-forwarder: sends what is in a spool to the daemon, and erases what is safe there.

The path of a record: ``slotfile`` reads it from its slot, ``engine`` decides when it is sent and
what the reply means (``verdicts``), ``forwarder`` moves the bytes, ``slotfile`` erases it.
"""
