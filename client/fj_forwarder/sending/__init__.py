"""Delivery engine, sans-IO: when a record is sent, and the effect of its reply.

delivery_engine  the next frames to send; records that wait, are tried again, or alone
dispositions     which records are sent, and the effect of each reply

No record holds up another; one at which connections end is searched for (poison message).
"""
