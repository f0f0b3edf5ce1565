"""Slot reader: the records of a slot, and the search for the next one after damage.

slot_reader    ``SlotReader``: records, blanks, torn writes
slot_window    the part of a file that is in memory
damage_search  the next whole record, with bounded work
"""
