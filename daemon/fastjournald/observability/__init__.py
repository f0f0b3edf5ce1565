"""Observability (``--http``): metrics for Prometheus, health checks, pages for a browser.

metrics, process_metrics   read at a scrape, from attributes of the objects that do the work
standby_pages              health and metrics of a standby of a remote log
html_pages, page_text      routes, pages and their texts; the templates are beside
page_figures, domain_totals   figures of the pages, made in slices
failing, rates                what fails, by error and domain; numbers a minute of the last hour
page_actions, page_sessions   actions of the pages, after a log-in

The server is bounded: heads, connections, deadlines. Nothing here is imported without ``--http``.
"""
