"""Fault-injecting fakes for tests of fastjournal and of programs that use it."""
