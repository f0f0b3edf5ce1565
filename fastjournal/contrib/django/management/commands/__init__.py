"""Management commands.

fastjournal_worker   works off a queue
"""
