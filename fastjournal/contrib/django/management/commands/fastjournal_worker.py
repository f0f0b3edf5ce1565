"""``manage.py fastjournal_worker QUEUE``: works off a queue with the function of the settings."""

from __future__ import annotations

import logging
import signal
from typing import Any

from django.core.management.base import BaseCommand, CommandError, CommandParser
from django.db import close_old_connections
from django.utils.module_loading import import_string

from fastjournal.client import WAIT_WITHOUT_END
from fastjournal.contrib.django import client, configuration

LOG = logging.getLogger("fastjournal.contrib.django")


class Command(BaseCommand):  # type: ignore[misc] # Django has no types
    """Calls the function of a queue for each of its jobs, until SIGTERM."""

    help = "Work off a queue with the function that FASTJOURNAL['workers'] names."

    def add_arguments(self, parser: CommandParser) -> None:
        """Declare the arguments."""
        parser.add_argument("queue")
        parser.add_argument("--burst", action="store_true", help="End when nothing is due.")

    def handle(self, *_: object, queue: str, burst: bool, **__: Any) -> None:
        """Work: a job whose function raises has failed, and the next one follows."""
        workers = configuration().get("workers", {})
        if queue not in workers:
            raise CommandError(
                f"no worker for {queue!r}: FASTJOURNAL['workers'] names {sorted(workers)}"
            )
        try:
            work = import_string(workers[queue])
        except ImportError as error:
            raise CommandError(f"FASTJOURNAL['workers'][{queue!r}]: {error}") from error
        with client().jobs(queue, wait=0 if burst else WAIT_WITHOUT_END) as jobs:
            before = signal.signal(signal.SIGTERM, lambda *_: jobs.stop())
            try:
                for job in jobs:
                    close_old_connections()
                    try:
                        with job:
                            work(job)
                    except Exception:
                        LOG.exception("job failed: %s", job.key)
                    close_old_connections()
            finally:
                signal.signal(signal.SIGTERM, before)
