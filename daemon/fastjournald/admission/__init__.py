"""Admission control: budgets of memory, of work a turn, of connections, and of bytes of the log."""
