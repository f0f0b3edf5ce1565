"""Data source ``fastjournal`` of Spark: its registration, and the readers of its views.

source        options and schema to the reader of a view
registration  ``register``: checks in the driver, tables of SQL, Spark Connect
row_views     views whose rows are made one by one: spools, beanstalkd, Kestrel
"""
