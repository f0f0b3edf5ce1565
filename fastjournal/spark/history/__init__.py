"""History: events of segments, each extracted once: as a table, as a stream, of a log as it is.

extractor       from a record to its event
archive_taking  segments of an archive to event files, then unlinked
event_files, event_rows   Parquet files by day and segment; their columns
coverage        segments, instants and gaps that the rows are complete for
events_reader, events_view, log_history   the view ``events`` of tables, archives and logs
"""
