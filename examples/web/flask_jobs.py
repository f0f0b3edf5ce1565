"""Flask application: one client of the process, which its threads share.

It connects at its first use, so in each worker that a server forks.
"""

from flask import Flask

from fastjournal import SyncClient

app = Flask(__name__)
jobs = SyncClient()


@app.post("/orders/<int:number>")
def confirm(number: int) -> tuple[dict[str, str], int]:
    """Have the order confirmed by a mail; asked for twice, one mail is sent."""
    written = jobs.enqueue("mails", {"order": number}, unique=f"order-{number}")
    return {"mail": str(written.outcome)}, 202
