"""Nightly report: figures of one UTC day from the stored tables, as HTML and on a terminal."""
