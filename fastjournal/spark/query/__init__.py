"""Query: options, paths, schema and filters with which a user asks for a view.

source_options    options, checked; ranges of segments, domains and times
paths             globs and lists, on disks and object stores
requested_schema  columns that are asked for, and their types
"""
