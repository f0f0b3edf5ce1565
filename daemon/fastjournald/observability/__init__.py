"""Observability (``--http``): metrics for Prometheus, health checks, pages for a browser.

metrics, process_metrics   read at a scrape, from attributes of the objects that do the work
html_pages, page_text      routes, pages and their texts; the templates are beside
page_figures, domain_totals   figures of the pages, made in slices

The server is bounded: heads, connections, deadlines. Nothing here is imported without ``--http``.
"""
