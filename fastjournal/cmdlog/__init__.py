"""Command log: workq's file format, and how entries live in it (docs/cmdlog.md)."""
