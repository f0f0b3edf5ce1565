"""Tasks of a shop: sync and async, unique keys, hooks and middleware."""

import logging
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from time import perf_counter

import anyio

from fastjournal.tasks import Middleware, TaskMessage, TaskRun, Tasks, current_run


class Timing(Middleware):
    """Logs how long each run takes, and who enqueued it."""

    def on_enqueue(self, message: TaskMessage) -> None:
        message.headers.setdefault("from", "shop")

    @contextmanager
    def around(self, run: TaskRun) -> Iterator[None]:
        began = perf_counter()
        yield
        seconds, sender = perf_counter() - began, run.message.headers["from"]
        logging.info("%s of %s took %.3f s", run.message.task, sender, seconds)


app = Tasks(queue="shop", middleware=[Timing()])


@dataclass
class Address:
    street: str
    city: str


@app.task(unique=["order_id"], timeout=30)
async def pack(order_id: int, address: Address) -> None:
    await anyio.sleep(0.01)
    print(f"packed {order_id} for {address.city}", flush=True)
    await invoice.aenqueue(order_id=order_id)


@app.task(queue="invoices", retries=9, retry_delay=lambda attempt: 10.0 * 2**attempt)
def invoice(order_id: int) -> None:
    print(f"invoice {order_id}, attempt {current_run().attempt}", flush=True)


@app.on_failure
def tell(run: TaskRun, error: Exception) -> None:
    if run.is_last:
        logging.error("gave up on %s: %s", run.message.task, error)
