"""In-memory tables and indexes: entries, queues, leases, locks. No journal and no IO."""
