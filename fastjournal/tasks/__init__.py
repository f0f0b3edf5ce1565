"""Tasks: functions by name that a worker program calls. docs/tasks.md teaches them.

    app = Tasks()

    @app.task(queue="mails", retries=2, retry_delay=[10, 60])
    def send(order_id: int) -> None: ...

    send.enqueue(order_id=7, delay=60)

``fj-worker shop.mails:app`` works the queues of an application off.

app                 ``Tasks`` and ``Task``: decoration, enqueue
messages            bytes of a message; the arguments of a function and their types
middleware          what runs before, after and around tasks
periodic, otel      cron lines, one job for each tick; spans of OpenTelemetry
execution           one run: decode, call, and what follows from a failure; ``run_pending``
worker, worker_main  ``fj-worker``: the loop, child processes, the command line
"""

from __future__ import annotations

from fastjournal.tasks.app import Task, Tasks
from fastjournal.tasks.messages import TaskMessage
from fastjournal.tasks.middleware import Middleware, TaskRun, current_run

__all__ = ["Middleware", "Task", "TaskMessage", "TaskRun", "Tasks", "current_run"]
