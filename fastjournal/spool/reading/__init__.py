"""Slot reader: the records of a slot, and the search for the next one behind damage."""
