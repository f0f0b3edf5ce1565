"""In-memory tables and indexes: no journal, no IO, no clock.

entry                      an entry, its packed numbers, the legal transitions of its state
key_table, key_index       entries by key (hash); all keys in byte order, for scans
domain, scheduler          ready, delayed and buried entries of a domain; round robin, deadlines
leases, locks, tombstones, expiry   what ends by time
domain_rules               pauses and limits of domains
value_cache                which values are in memory (LRU)
sorted_entries, interval_index      the data structures of our own
"""
