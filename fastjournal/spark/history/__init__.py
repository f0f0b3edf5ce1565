"""History: events of segments, each extracted once: as a table, as a stream, of a log as it is."""
