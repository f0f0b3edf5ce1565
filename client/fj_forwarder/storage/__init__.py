"""Slot store: the files of a spool, from listing to deletion.

slot_store, slot_listing  all slots, oldest first; those that are not open, other files
slot_file, slot_space     a slot: read in windows, erased in place, its space released by holes
retry_queue, backlog      delayed records, out of memory until they are due; what is pending

Torn writes and damage go to ``dead/``. A slot that another program changed is recognised before
anything is written to it.
"""
