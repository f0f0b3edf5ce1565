"""Trio client."""
