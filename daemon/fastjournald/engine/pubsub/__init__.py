"""Publish/subscribe: LISTEN subscriptions, change sets and their matching. Pure."""
