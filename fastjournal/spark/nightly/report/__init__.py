"""Nightly report: figures of one UTC day from the stored tables, as HTML and on a terminal.

figures      read from the tables, without Spark
diagnosis    which domains were slow, since when, and why
report_page  the page: template, definitions
charts, texts  coordinates of its charts; numbers and names for people
console      the summary on a terminal
"""
