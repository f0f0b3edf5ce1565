"""Log compaction: liveness rules, policy, and the rewriting of sealed segments."""
