"""Worker process: takes the work that the applications reported, one after the other.

python worker.py ADDRESS DOMAIN
"""

import sys

from fastjournal import SyncClient, SyncJob


def work(job: SyncJob) -> None:
    """An exception here fails the attempt: the daemon delivers it again, with growing pauses."""
    print(job.uri.decode(), job.decoded(str), flush=True)


address, domain = sys.argv[1:]
with SyncClient(address) as client:
    client.jobs(domain).run(work)
