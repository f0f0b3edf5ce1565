"""Observability: metrics and the HTTP pages that show them."""
