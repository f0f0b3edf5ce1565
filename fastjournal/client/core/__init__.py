"""Client core: requests, replies, pipelining and retry policy. Sans-IO."""
