"""Recovery of the command log: scan, replay, damage report and repair."""
