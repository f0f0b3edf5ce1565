"""Delivery engine, sans-IO: when a record is sent, and the effect of its reply.

Records that are refused for now wait and are tried again; a record at which connections end is
searched for and tried alone (poison message). No record holds up another. The caller gives it
records, replies and the time, and erases, delays or puts aside what it returns.
"""
