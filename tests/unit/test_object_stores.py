"""Object stores that cannot be reached: an error in bounded time, in one sentence."""

from __future__ import annotations

import socket
from contextlib import closing
from typing import Any

import pyarrow.fs
import pytest

from fastjournal.errors import LogFailedError
from fastjournal.spark.storage.files import (
    CONNECT_TIMEOUT_S,
    REQUEST_TIMEOUT_S,
    RETRY_LIMIT_S,
    LogDirectory,
    error_text,
    resolve,
)


def settings(uri: str) -> dict[str, Any]:
    """Return what a file system has, as a pickle of it."""
    files, _ = resolve(uri)
    found: dict[str, Any] = files.__reduce__()[1][0]
    return found


def closed_port() -> int:
    with closing(socket.create_server(("127.0.0.1", 0))) as server:
        port: int = server.getsockname()[1]
    return port


@pytest.mark.parametrize("scheme", ["gs", "gcs"])
def test_requests_to_googles_store_are_tried_again_for_a_bounded_time(scheme: str) -> None:
    for uri in (f"{scheme}://anonymous@bucket/key", f"{scheme}://anonymous@bucket/key?scheme=http"):
        assert settings(uri)["retry_time_limit"].total_seconds() == RETRY_LIMIT_S
    asked = settings(f"{scheme}://anonymous@bucket?scheme=http&retry_limit_seconds=7")
    assert asked["retry_time_limit"].total_seconds() == 7


def test_requests_to_s3_have_timeouts_and_the_options_of_their_uri() -> None:
    place = "key:secret@bucket/a?region=eu-north-1&scheme=http&endpoint_override=127.0.0.1:9"
    for scheme in ("s3", "s3a"):
        found = settings(f"{scheme}://{place}")
        assert (found["connect_timeout"], found["request_timeout"]) == (
            CONNECT_TIMEOUT_S,
            REQUEST_TIMEOUT_S,
        )
        plain = pyarrow.fs.FileSystem.from_uri(f"s3://{place}")[0].__reduce__()[1][0]
        changed = {name for name in plain if plain[name] != found[name]}
        assert changed == {"connect_timeout", "request_timeout"}
    assert resolve(f"s3://{place}")[1] == "bucket/a"


def test_store_that_cannot_be_reached_is_one_sentence() -> None:
    endpoint = f"scheme=http&endpoint_override=127.0.0.1:{closed_port()}"
    for uri in (
        f"gs://anonymous@bucket/key?{endpoint}&retry_limit_seconds=0.1",
        f"s3://key:secret@bucket/key?{endpoint}",
    ):
        with pytest.raises(LogFailedError, match=r"^bucket/key: cannot list: ") as failed:
            LogDirectory(uri)
        text = str(failed.value)
        assert "Could not connect to server" in text
        assert "\n" not in text
        assert "error_info" not in text
        assert "google::" not in text


@pytest.mark.parametrize(
    ("told", "text"),
    [
        (
            "google::cloud::Status(UNAVAILABLE: Retry policy exhausted, with a last message of "
            "PerformWork() - CURL error [7]=Could not connect to server error_info={reason=, "
            "metadata={a=b}})",
            "PerformWork() - CURL error [7]=Could not connect to server",
        ),
        ("google::cloud::Status(NOT_FOUND: no such bucket)", "NOT_FOUND: no such bucket"),
        ("No such file or directory", "No such file or directory"),
    ],
)
def test_error_text_leaves_out_what_is_for_programs(told: str, text: str) -> None:
    assert error_text(OSError(told)) == text
