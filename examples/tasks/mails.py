"""Mails with three attempts and back-off."""

from fastjournal.tasks import Tasks

app = Tasks()


@app.task(queue="mails", retries=2, retry_delay=[10, 60])
def send(order_id: int, to: str = "ann@example.org") -> None:
    print(f"order {order_id} to {to}", flush=True)
