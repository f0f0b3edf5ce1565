"""Handlers: one function for each function of the protocol, listed in ``table``. Pure."""
