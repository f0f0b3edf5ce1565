"""Recovery: from the files of the log to an engine that goes on where it stopped."""
