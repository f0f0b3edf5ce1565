"""File systems of pyarrow by URI, with bounds for stores that cannot be reached or do not answer.

Without these a request to Google's store is tried again for 15 minutes, and one to S3 that nobody
answers for minutes.
"""

from __future__ import annotations

import re
from typing import Any

import pyarrow.fs

CONNECT_TIMEOUT_S = 10.0
"""For a connection to S3; three are tried."""
REQUEST_TIMEOUT_S = 20.0
"""For a reply of S3 without any byte. While it copies some GiB, it sends spaces."""
RETRY_LIMIT_S = 60
"""Time in which a request to Google's store is tried again."""

_GOOGLE = ("gs://", "gcs://")
_RETRY_OPTION = "retry_limit_seconds="
_GOOGLE_ERROR = re.compile(r"google::cloud::Status\((.*?)(?: error_info=.*)?\)\Z", re.S)
_LOCAL_ERROR = re.compile(r"\[Errno \d+\] .*Detail: \[errno \d+\] (.*)", re.S)
_LAST_MESSAGE = re.compile(r".*with a last message of ", re.S)


def open_file_system(uri: str) -> tuple[Any, str]:
    """Return the file system of a URI, and the path there; errors are those of pyarrow.

    The option ``retry_limit_seconds`` of a URI of Google's store holds, if it has one.
    """
    if uri.startswith(_GOOGLE) and _RETRY_OPTION not in uri:
        uri += f"{'&' if '?' in uri else '?'}{_RETRY_OPTION}{RETRY_LIMIT_S}"
    files, path = pyarrow.fs.FileSystem.from_uri(uri)
    if uri.startswith("s3://"):
        # a URI has no options for these; the settings are those that a pickle has
        (settings,) = files.__reduce__()[1]
        settings |= {"connect_timeout": CONNECT_TIMEOUT_S, "request_timeout": REQUEST_TIMEOUT_S}
        files = pyarrow.fs.S3FileSystem(**settings)
    return files, path


def error_text(error: Exception) -> str:
    """Return the text of an error, without what Python, pyarrow and Google's client add to it.

    The first two repeat number, action and path of an error of the operating system.
    """
    if isinstance(error, OSError) and error.filename is not None:
        return error.strerror or str(error)
    text = str(error)
    local = _LOCAL_ERROR.fullmatch(text)
    if local is not None:
        return local[1]
    found = _GOOGLE_ERROR.search(text)
    return text if found is None else _LAST_MESSAGE.sub("", found[1]).strip()
