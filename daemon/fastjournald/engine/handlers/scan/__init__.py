"""Scans: GET of a range, an expression or a cursor, in steps of bounded work.

scan     a GET in steps: search, lease, one page of the reply
page     query plan, page of a reply, continuation token (cursor)
search   keys that match
leasing  scans that lease what they find

Between two steps every entry may change: a scan continues at a key.
"""
