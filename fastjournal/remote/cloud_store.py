"""Object store of S3 and compatible services, GCS and Azure, by the library obstore.

The extra ``fastjournal[remote]`` installs obstore, which is imported with the first store: a
process must not fork afterwards. Its calls block, hold signals back and cannot be cancelled: call
them in threads. A time-out is for a whole request, whatever its progress. The library repeats
failed requests by itself; a repeat can meet its own object, which the rules tell by its content.

Errors are translated here and nowhere else. A missing object and a missing bucket are the same
error for all calls but a listing.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import timedelta
from importlib import import_module
from pathlib import Path
from typing import Any

from fastjournal.entry_points import check_extra
from fastjournal.errors import ExtraMissingError, StoreRefusedError, StoreUnavailableError
from fastjournal.remote.store import Listed, first_names

SCHEMES = ("s3", "gs", "az")
_PAGE = 1000

BULK_SECONDS = 60.0
"""Time-out of a copy, and of each part of a file. Twelve parts of 5 MiB are under way at once: a
line of 1 MB/s stores a segment."""


class CloudStore:
    """An object store of a service, with the interface of ``ObjectStore``.

    Args:
        url: ``s3://bucket/prefix``, ``gs://bucket/prefix`` or ``az://container/prefix``.
            The environment has region, credentials and endpoint, under the usual names of the
            service.
        timeout_seconds: Time-out of one request of the library, but for copies and files.
        repeats: Repeats of a failed request by the library.

    Raises:
        ExtraMissingError: obstore is not installed.
        StoreRefusedError: obstore does not understand the URL.
    """

    def __init__(self, url: str, *, timeout_seconds: float = 2.5, repeats: int = 1) -> None:
        check_extra("remote")
        try:
            self._library: Any = import_module("obstore")
            self._errors: Any = import_module("obstore.exceptions")
        except ImportError as error:
            raise ExtraMissingError(
                f"obstore cannot be loaded: {error}", hint="install it anew for this Python"
            ) from error
        with self._translating(url):
            self._store = self._open(url, timeout_seconds, repeats)
            self._bulk = self._open(url, max(timeout_seconds, BULK_SECONDS), repeats)

    def _open(self, url: str, timeout_seconds: float, repeats: int) -> Any:
        timeout = timedelta(seconds=timeout_seconds)
        return import_module("obstore.store").from_url(
            url,
            client_options={
                "timeout": timeout,
                "connect_timeout": timeout,
                # only where the endpoint of the environment says so
                "allow_http": any(
                    os.environ.get(name, "").startswith("http://")
                    for name in ("AWS_ENDPOINT_URL", "AWS_ENDPOINT_URL_S3")
                ),
            },
            retry_config={
                "max_retries": repeats,
                "retry_timeout": timeout * (repeats + 1),
                "backoff": {
                    "init_backoff": timedelta(milliseconds=50),
                    "max_backoff": timedelta(milliseconds=500),
                    "base": 2,
                },
            },
        )

    def create(self, name: str, data: bytes) -> bool:
        """Create an object, if it does not exist, in one request."""
        try:
            with self._translating(name):
                self._library.put(self._store, name, data, mode="create", use_multipart=False)
        except FileExistsError:
            return False
        return True

    def get(self, name: str) -> bytes | None:
        """Return an object, or None."""
        try:
            with self._translating(name, missing=FileNotFoundError):
                return bytes(self._library.get(self._store, name).bytes())
        except FileNotFoundError:
            return None

    def get_range(self, name: str, start: int, length: int) -> bytes | None:
        """Return a part of an object, or None."""
        try:
            with self._translating(name, missing=FileNotFoundError):
                part = self._library.get_range(self._store, name, start=start, length=length)
                return bytes(part)
        except FileNotFoundError:
            return None

    def list(self, folder: str, after: str = "", limit: int | None = None) -> list[Listed]:
        """Return the objects of a folder behind a name, sorted."""
        found: list[Listed] = []
        with self._translating(folder):
            pages = self._library.list(self._store, folder, offset=after or None, chunk_size=_PAGE)
            for page in pages:
                # some servers ignore the offset
                found += [Listed(o["path"], o["size"]) for o in page if o["path"] > after]
                if limit is not None and len(found) >= limit:
                    break
        return first_names(found, after, limit)

    def delete(self, name: str) -> None:
        """Remove an object, if there is one."""
        try:
            with self._translating(name, missing=FileNotFoundError):
                self._library.delete(self._store, name)
        except FileNotFoundError:
            return

    def overwrite(self, name: str, data: bytes | None, path: str = "") -> None:
        """Write an object from bytes, or from a file in parts."""
        with self._translating(name):
            if data is None:
                self._library.put(self._bulk, name, Path(path), mode="overwrite")
            else:
                self._library.put(self._store, name, data, mode="overwrite")

    def copy(self, source: str, target: str) -> bool:
        """Copy an object, if there is one."""
        try:
            with self._translating(source, missing=FileNotFoundError):
                self._library.copy(self._bulk, source, target, overwrite=True)
        except FileNotFoundError:
            return False
        return True

    @contextmanager
    def _translating(
        self, name: str, missing: type[Exception] = StoreRefusedError
    ) -> Iterator[None]:
        """Translate the errors of the library.

        Args:
            name: Object of the request.
            missing: Error for a missing object, or bucket.
        """
        errors = self._errors
        try:
            yield
        except (errors.AlreadyExistsError, errors.PreconditionError) as error:
            raise FileExistsError(name) from error
        except FileNotFoundError as error:
            if missing is FileNotFoundError:
                raise
            raise StoreRefusedError("there is no such bucket", path=name) from error
        except (errors.PermissionDeniedError, errors.UnauthenticatedError) as error:
            raise StoreRefusedError(
                f"the store refuses these credentials: {_first_line(error)}",
                path=name,
                hint="check the credentials and their rights, and the clock of this machine",
            ) from error
        except (errors.BaseError, OSError, ValueError) as error:
            raise self._failed(name, error) from error

    def _failed(self, name: str, error: Exception) -> StoreRefusedError | StoreUnavailableError:
        text = _first_line(error)
        if "404 Not Found" in text:  # of a listing
            return StoreRefusedError("there is no such bucket", path=name)
        if "region" in text:
            return StoreRefusedError(
                f"the bucket is in another region: {text}", path=name, hint="set the region"
            )
        if not isinstance(error, self._errors.GenericError | OSError):
            return StoreRefusedError(f"the store refuses the request: {text}", path=name)
        return StoreUnavailableError(f"the request failed: {text}", path=name)


def _first_line(error: Exception) -> str:
    return (str(error).strip() or type(error).__name__).splitlines()[0]
