"""History: events of segments, each extracted once: as a table, as a stream, of a log as it is.

extractor       from a record to its event
archive_taking  segments of an archive to event files, then unlinked
remote_history, remote_taking   segments of a remote log: where they are; to event files
event_files, event_rows   Parquet files by day and segment; their columns
coverage, days  segments, instants and gaps that the rows are complete for; UTC days
events_view     the view ``events`` of tables, archives and logs
"""
