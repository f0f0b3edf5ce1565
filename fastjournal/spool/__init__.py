"""The local spool: where a program puts its requests so that nothing is lost.

``Spool`` appends; the forwarder (``fj-forwarder``) sends what is there and erases it.
"""

from fastjournal.spool.writer import Spool

__all__ = ["Spool"]
