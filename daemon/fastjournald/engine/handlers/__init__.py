"""Handlers: one function for each function of the protocol, in a file named after it. Pure."""
