"""Sentry: an event for each failed attempt, with its task, in a scope of its own.

``pip install sentry-sdk``, and set SENTRY_DSN.
"""

import os
from collections.abc import Iterator
from contextlib import contextmanager

import sentry_sdk
from sentry_sdk.integrations.logging import ignore_logger

from fastjournal.tasks import Middleware, TaskRun, Tasks


class Sentry(Middleware):
    @contextmanager
    def around(self, run: TaskRun) -> Iterator[None]:
        with sentry_sdk.isolation_scope() as scope:
            scope.set_transaction_name(run.message.task, source="task")
            scope.set_tag("task", run.message.task)
            job = {"key": run.job.key.decode(), "attempt": run.attempt, "args": run.message.args}
            scope.set_context("job", job)
            try:
                yield
            except Exception as error:
                sentry_sdk.capture_exception(error)
                raise

    def on_stop(self) -> None:
        sentry_sdk.flush(timeout=5)


sentry_sdk.init(dsn=os.environ.get("SENTRY_DSN"))
ignore_logger("fastjournal.tasks")  # it logs failures that are events already
app = Tasks(queue="mails", middleware=[Sentry()])


@app.task(retries=1, retry_delay=0.1)
def send(order_id: int, to: str) -> None:
    sentry_sdk.set_tag("order", order_id)
    raise OSError(f"550 {to} does not exist")
