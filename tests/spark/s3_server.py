"""S3 server of this machine, in a process of its own: a real S3 client speaks to it."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any
from unittest.mock import patch

import pyarrow.fs

BUCKET = "reports"
_SERVER = """
import logging, sys
from werkzeug.serving import make_server
from moto.server import DomainDispatcherApplication, create_backend_app
logging.getLogger("werkzeug").setLevel(logging.ERROR)
server = make_server("127.0.0.1", 0, DomainDispatcherApplication(create_backend_app), True)
print(server.server_port, flush=True)
server.serve_forever()
"""


@contextmanager
def s3_server() -> Iterator[dict[str, str]]:
    """Start a server with one bucket; yield the environment of its users, which is set here."""
    with subprocess.Popen(
        [sys.executable, "-c", _SERVER], stdout=subprocess.PIPE, text=True
    ) as process:
        try:
            assert process.stdout is not None
            settings = {
                "AWS_ENDPOINT_URL": f"http://127.0.0.1:{int(process.stdout.readline())}",
                "AWS_ACCESS_KEY_ID": "key",
                "AWS_SECRET_ACCESS_KEY": "secret",
                "AWS_DEFAULT_REGION": "us-east-1",
                "AWS_EC2_METADATA_DISABLED": "true",
            }
            with patch.dict(os.environ, settings):
                creator: Any = pyarrow.fs.S3FileSystem(
                    allow_bucket_creation=True, endpoint_override=settings["AWS_ENDPOINT_URL"]
                )
                creator.create_dir(BUCKET)
                yield settings
        finally:
            process.kill()
