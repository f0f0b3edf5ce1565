"""fj-forwarder: sends the records of a spool to the daemon, and erases those that are safe there.

The path of a record: ``slot_file`` reads it from its slot, ``delivery`` looks whether it can go,
``delivery_engine`` decides when it is sent, ``forwarder`` moves the bytes, ``delivery_engine`` and
``dispositions`` say what the reply means, ``delivery`` and ``slot_file`` erase it. ``slot_store``
knows all slots of the spool.
"""
