"""Delivery engine, sans-IO: records on their way to the daemon, and what its replies mean."""
