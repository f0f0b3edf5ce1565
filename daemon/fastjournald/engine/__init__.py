"""State machine: what a request does, as a pure function of state, request and clock."""
