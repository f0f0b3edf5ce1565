"""Slot store: the files of a spool, from listing to deletion.

A slot file is read in windows, its records are erased in place, its space is released by holes, and
it is deleted when all of it is sent. Torn writes and damage go to ``dead/``. A slot that another
program changed is recognised before anything is written to it. Delayed records leave memory and
are read again when they are due.
"""
