"""Django: enqueue on commit and the worker command, in a project with a database."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from fastjournal.client import SyncClient
from tests.integration.daemon_process import DaemonProcess

pytest.importorskip("django")

SETTINGS = """
import os
SECRET_KEY = "for this test only"
INSTALLED_APPS = ["fastjournal.contrib.django"]
DATABASES = {"default": {"ENGINE": "django.db.backends.sqlite3", "NAME": "shop.sqlite3"}}
FASTJOURNAL = {"server": os.environ["SERVER"], "workers": {"mails": "shop.send", "bad": "shop.no"}}
"""

SHOP = """
from django.db import connection, transaction
from fastjournal.contrib.django import enqueue

def create():
    with connection.cursor() as cursor:
        cursor.execute("CREATE TABLE IF NOT EXISTS shop (number INTEGER)")

def order(number, fails=False):
    with transaction.atomic():
        with connection.cursor() as cursor:
            cursor.execute("INSERT INTO shop VALUES (%s)", [number])
        enqueue("mails", {"order": number}, unique=str(number))
        assert waiting() == before
        if fails:
            raise ValueError("the payment was refused")

def waiting():
    from fastjournal.contrib.django import client
    return client().domain_stats("mails").entries

def orders():
    with connection.cursor() as cursor:
        cursor.execute("SELECT number FROM shop ORDER BY number")
        return [number for (number,) in cursor.fetchall()]

before = 0

def send(job):
    order = job.decoded(str)
    if "13" in order:
        raise OSError("SMTP 550")
    with open("sent", "a") as sent:
        sent.write(order + "\\n")
"""

PRODUCER = """
import os
os.environ["DJANGO_SETTINGS_MODULE"] = "settings"
import django
django.setup()
import shop
from fastjournal.contrib.django import enqueue
from fastjournal.errors import BadRequestError
shop.create()
shop.order(7)
assert shop.waiting() == 1
shop.before = 1
try:
    shop.order(8, fails=True)
except ValueError:
    pass
assert (shop.waiting(), shop.orders()) == (1, [7])
shop.order(13)
assert shop.waiting() == 2
try:
    enqueue("a:b", {})
except BadRequestError:
    pass
else:
    raise AssertionError("told at the commit only")
enqueue("other", b"at once, without a transaction")
"""

OF_A_USER = """
from datetime import timedelta

from django.conf import settings

settings.configure(
    INSTALLED_APPS=["fastjournal.contrib.django"],
    DATABASES={"default": {"ENGINE": "django.db.backends.sqlite3", "NAME": ":memory:"}},
)
import django

django.setup()

from django.core.exceptions import ImproperlyConfigured
from django.core.management import CommandError, call_command
from django.test import override_settings

from fastjournal.contrib.django import client, enqueue

done = []


def work(job):
    done.append(job.decoded(str))


def test_delayed(fastjournal_daemon):
    found = {"client": fastjournal_daemon.sync_client, "workers": {"mails": f"{__name__}.work"}}
    with override_settings(FASTJOURNAL=found):
        enqueue("mails", "hello", delay=timedelta(hours=1))
        call_command("fastjournal_worker", "mails", burst=True)
        assert done == []
        fastjournal_daemon.advance(3601)
        call_command("fastjournal_worker", "mails", burst=True)
        assert done == ["hello"]
        try:
            call_command("fastjournal_worker", "search", burst=True)
        except CommandError as error:
            assert "names ['mails']" in str(error)
        else:
            raise AssertionError
    with override_settings(FASTJOURNAL={"sever": ""}):
        try:
            client()
        except ImproperlyConfigured as error:
            assert "no 'sever'; it has: server" in str(error)
        else:
            raise AssertionError
"""


def project(directory: Path, address: str) -> dict[str, str]:
    (directory / "settings.py").write_text(SETTINGS)
    (directory / "shop.py").write_text(SHOP)
    (directory / "produce.py").write_text(PRODUCER)
    path = f"{directory}:{Path(__file__).parents[2]}"
    return {
        **os.environ,
        "SERVER": f"unix:/no/daemon,{address}",
        "DJANGO_SETTINGS_MODULE": "settings",
        "PYTHONPATH": path,
    }


def run(directory: Path, environment: dict[str, str], *command: str) -> str:
    ran = subprocess.run(
        [sys.executable, *command],
        cwd=directory,
        env=environment,
        capture_output=True,
        text=True,
        check=False,
    )
    assert ran.returncode == 0, ran.stdout + ran.stderr
    return ran.stdout + ran.stderr


def test_django_rollback_enqueues_nothing_and_the_worker_command_works(tmp_path: Path) -> None:
    # a look that comes late finds it delayed too
    with DaemonProcess(tmp_path, "--retry-delay", "600") as daemon:
        environment = project(tmp_path, daemon.address)
        run(tmp_path, environment, "produce.py")
        said = run(tmp_path, environment, "-m", "django", "fastjournal_worker", "mails", "--burst")
        assert (tmp_path / "sent").read_text() == '{"order":7}\n'
        assert "SMTP 550" in said
        with SyncClient(daemon.address) as client:
            stats = client.domain_stats("mails")
            assert (stats.entries, stats.delayed) == (1, 1)


def test_django_worker_command_ends_at_sigterm_and_names_a_function_that_is_not_there(
    tmp_path: Path,
) -> None:
    with DaemonProcess(tmp_path) as daemon:
        environment = project(tmp_path, daemon.address)
        command = [sys.executable, "-m", "django", "fastjournal_worker"]
        worker = subprocess.Popen([*command, "mails"], cwd=tmp_path, env=environment)
        try:
            with SyncClient(daemon.address) as client:
                client.enqueue("mails", {"order": 9})
                while client.domain_stats("mails").entries:
                    assert worker.poll() is None
        finally:
            worker.send_signal(signal.SIGTERM)
            assert worker.wait(60) == 0
        bad = subprocess.run(
            [*command, "bad"],
            cwd=tmp_path,
            env=environment,
            capture_output=True,
            text=True,
            check=False,
        )
        assert bad.returncode == 1
        assert "FASTJOURNAL['workers']['bad']" in bad.stderr
        assert (tmp_path / "sent").read_text() == '{"order":9}\n'


def test_django_application_is_tested_with_the_daemon_in_process(tmp_path: Path) -> None:
    (tmp_path / "test_shop.py").write_text(OF_A_USER)
    environment = {**os.environ, "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1"}
    command = ["-m", "pytest", "-q", "-p", "no:cacheprovider", "-p", "fastjournald.pytest_plugin"]
    assert "1 passed" in run(tmp_path, environment, *command, "test_shop.py")
