"""Scans: GET of a range, an expression or a cursor, in steps."""
