"""Record format of the command log: workq's byte layout and what fastjournal puts into it."""
