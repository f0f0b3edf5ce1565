"""fj-forwarder: sends the records of a spool to the daemon, and erases those that are safe there.

The path of a record: ``storage`` reads it from its slot (``slot_file``; ``slot_store`` knows all
slots), ``delivery`` looks whether it can go, ``sending`` decides when it is sent, ``forwarder``
moves the bytes, ``sending`` says what the reply means, ``delivery`` and ``storage`` erase it.
"""
