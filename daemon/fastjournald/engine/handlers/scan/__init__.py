"""Scans: GET of a range, an expression or a cursor, in steps of bounded work.

scan     query plan, reading of keys, pages of a reply
search   keys that match, and the continuation token (cursor)
leasing  scans that lease what they find

Between two steps every entry may change: a scan continues at a key.
"""
