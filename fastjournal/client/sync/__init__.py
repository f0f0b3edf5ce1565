"""Blocking client over sockets of the standard library."""
