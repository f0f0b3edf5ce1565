"""In-memory tables and indexes: no journal, no IO, no clock.

entry                      an entry, its packed numbers, the legal transitions of its state
key_table, key_index       entries and tombstones by key (hash); all keys in byte order, for scans
domain                     ready, delayed and buried entries of a domain; order of the domains
scheduler                  entries into the queues of their domain and out of them
leases, lease_holders, locks   what ends by time, or with its connection
domain_rules, domain_limits    pauses and limits of domains
job_counts                 what became of the jobs of each domain, for metrics
signals                    what the engine asks of the tasks
value_cache                which values are in memory (LRU)
sorted_entries, interval_index      the data structures of our own
"""
