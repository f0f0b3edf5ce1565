"""``python -m fj_forwarder``."""

from fastjournal.entry_points import fj_forwarder

fj_forwarder()
