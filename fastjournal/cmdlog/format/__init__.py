"""Record format of the command log: workq's byte layout and what fastjournal puts into it.

layout, records     headers, records of workq's commands, checksums
operation_records   changes that workq skips: leases, links, values, pauses, ...
envelope, endings   an entry in a record; how it ended
packed_entry        the numbers of an entry in one bytes object, which is its sort key
workq               names, priorities and times as workq has them
"""
