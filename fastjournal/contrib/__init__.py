"""Parts for programs of others; each is loaded only where that program is.

django   Django: enqueue on commit, settings, management command of a worker
"""
