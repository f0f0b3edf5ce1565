"""Publish/subscribe: LISTEN subscriptions, change sets and their matching. Pure.

subscriptions   table of all LISTENs, from a change to the delivery of its notifications
subscription, subscriber   one LISTEN and the index by key; a session, its queues and limits
change_set      changed keys that are not matched so far
fan_out         matching of a change with subscriptions, in slices
regex_sets      expressions as sets of RE2

A request only adds its keys to the change set; ``tasks/notifier`` does the rest.
"""
