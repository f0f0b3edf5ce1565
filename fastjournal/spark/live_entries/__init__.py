"""Live entries: the records that carry them, by the live index of a snapshot, and their columns."""
