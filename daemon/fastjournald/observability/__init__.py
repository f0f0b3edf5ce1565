"""Observability (``--http``): metrics for Prometheus, health checks, pages for a browser.

Metrics are read from attributes of the objects that do the work, at a scrape. Pages are made in
slices, from the tables of the engine, with the templates beside. The server is bounded: heads,
connections, deadlines. Nothing here is imported without ``--http``.
"""
