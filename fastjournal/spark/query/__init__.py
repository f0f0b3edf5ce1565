"""Query: options, paths, schema and filters with which a user asks for a view."""
