"""S3 servers of this machine, in processes of their own: right ones, and some that are not."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from unittest.mock import patch

import boto3

BUCKET = "logs"
_SERVER = """
import logging, sys, threading
from werkzeug.serving import make_server
from moto.server import DomainDispatcherApplication, create_backend_app
logging.getLogger("werkzeug").setLevel(logging.ERROR)
application = DomainDispatcherApplication(create_backend_app)
fault, failures = sys.argv[1], {}
# moto looks whether an object is there, and then puts it: two of its threads may both find nothing
one_write = threading.Lock()

def carried_out(environ, start_response):
    with one_write:
        return list(application(environ, start_response))

def faulty(environ, start_response):
    if fault == "overwrites":
        environ.pop("HTTP_IF_NONE_MATCH", None)
    writes = environ["REQUEST_METHOD"] == "PUT" and environ["PATH_INFO"].count("/") > 1
    if fault == "forbids" and writes:
        start_response("403 Forbidden", [("Content-Type", "application/xml")])
        return [b"<Error><Code>RequestTimeTooSkewed</Code></Error>"]
    name = environ["REQUEST_METHOD"], environ["PATH_INFO"]
    probe = writes and "/probe/" in name[1]
    if fault == "fails late" and probe and name not in failures:
        failures[name] = True
        carried_out(environ, lambda *_: None)
        start_response("500 Internal Server Error", [("Content-Type", "application/xml")])
        return [b"<Error><Code>InternalError</Code></Error>"]
    return (carried_out if writes else application)(environ, start_response)

server = make_server("127.0.0.1", 0, faulty, True)
print(server.server_port, flush=True)
server.serve_forever()
"""


@contextmanager
def s3_server(fault: str = "") -> Iterator[str]:
    """Start a server with one bucket; yield its address. The environment names it meanwhile.

    Args:
        fault: ``overwrites`` on create, ``forbids`` to write, ``fails late``: the first try of each
            write of a probe is answered 500 after the work is done.
    """
    with subprocess.Popen(
        [sys.executable, "-c", _SERVER, fault], stdout=subprocess.PIPE, text=True
    ) as process:
        try:
            assert process.stdout is not None
            address = f"http://127.0.0.1:{int(process.stdout.readline())}"
            settings = {
                "AWS_ENDPOINT_URL": address,
                "AWS_ACCESS_KEY_ID": "key",
                "AWS_SECRET_ACCESS_KEY": "secret",
                "AWS_DEFAULT_REGION": "us-east-1",
                "AWS_EC2_METADATA_DISABLED": "true",
            }
            with patch.dict(os.environ, settings):
                boto3.client("s3").create_bucket(Bucket=BUCKET)
                yield address
        finally:
            process.kill()
