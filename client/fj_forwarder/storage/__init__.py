"""Slot store: slot files that are read, erased and deleted, and what waits to be retried."""
