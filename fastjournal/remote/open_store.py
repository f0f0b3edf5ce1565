"""Opening of an object store: the store of a URL, and the test that it keeps its promises (S5).

A remote log needs one primitive: create an object only if it does not exist. Some stores take such
a request and overwrite. So each start creates one name eight times at once.
"""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from urllib.parse import unquote, urlsplit

from fastjournal.errors import StoreRefusedError, StoreUnavailableError
from fastjournal.remote.cloud_store import SCHEMES, CloudStore
from fastjournal.remote.file_store import FileStore
from fastjournal.remote.objects import PROBES
from fastjournal.remote.store import ObjectStore

CREATES_AT_ONCE = 8
TRIES = 3
"""Tests after which a store is refused: a network with faults breaks no promise so often."""


ADOPTION_NAMES = 1001
"""Objects of the listing that is looked at before a remote log begins: more than servers give at
once."""

_HINT = "a remote log in this store could lose acknowledged changes: use another one"


def open_store(url: str, *, timeout_seconds: float = 2.5, repeats: int = 1) -> ObjectStore:
    """Return the store of a URL; nothing is asked of it yet.

    Args:
        url: ``s3://bucket/prefix``, ``gs://bucket/prefix``, ``az://container/prefix``, or
            ``file:///directory``.
        timeout_seconds: Time-out of one request of a service.
        repeats: Repeats of a failed request by the library.

    Raises:
        ExtraMissingError: The package for services is not installed.
        StoreRefusedError: The URL, or the file system of the directory.
        StoreUnavailableError: The directory cannot be created.
    """
    directory = parse_store_url(url)
    if directory:
        return FileStore(directory)
    return CloudStore(url, timeout_seconds=timeout_seconds, repeats=repeats)


def parse_store_url(url: str) -> str:
    """Return the directory that a URL of a store names; empty: it is of a service.

    Raises:
        StoreRefusedError: It is none.
    """
    parts = urlsplit(url)
    if parts.scheme == "file" and parts.netloc in ("", "localhost") and len(parts.path) > 1:
        return unquote(parts.path)
    if parts.scheme in SCHEMES and parts.netloc:
        return ""
    raise StoreRefusedError(
        f"{url} is no URL of an object store",
        hint="s3://bucket/prefix, gs://..., az://container/prefix or file:///directory",
    )


def require_promises(store: ObjectStore, nonce: bytes, *, names: int = CREATES_AT_ONCE) -> None:
    """Try a store at a start; it holds the objects of the test for a moment.

    Args:
        store: The store.
        nonce: Random bytes, for names that nobody else has.
        names: Objects of the listing that is looked at. Some servers give 1,000 names as if that
            were all; adoption asks for more.

    Raises:
        StoreRefusedError: It does not keep a promise, or refuses this user.
        StoreUnavailableError: A request failed.
    """
    for tries in range(1, TRIES + 1):
        try:
            _try_promises(store, f"{PROBES}/{nonce.hex()}-{tries}", nonce, names)
        except StoreRefusedError:
            # a repeat of the library, or a request that comes late, can look like a broken promise
            if tries == TRIES:
                raise
        else:
            return


def _try_promises(store: ObjectStore, folder: str, nonce: bytes, names: int) -> None:
    try:
        _require_create_only(store, f"{folder}/once", nonce)
        _require_listing(store, folder, names)
    finally:
        # what a failed request may still create stays: a later test has another name
        _delete_all(store, folder)
    if store.list(folder):
        raise StoreRefusedError("the store still lists an object that was deleted", hint=_HINT)


def _require_create_only(store: ObjectStore, name: str, nonce: bytes) -> None:
    contents = [nonce + bytes((number,)) for number in range(CREATES_AT_ONCE)]
    with ThreadPoolExecutor(CREATES_AT_ONCE) as threads:
        created = list(threads.map(lambda content: _created(store, name, content), contents))
    found = store.get(name)
    winners = [content for content, ours in zip(contents, created, strict=True) if ours]
    if len(winners) > 1 or (winners and found != winners[0]):
        raise StoreRefusedError(
            "the store does not enforce create-only writes: several writers created one object",
            hint=_HINT,
        )
    if found is None and None in created:
        raise StoreUnavailableError("the store answers no test of its creates", path=name)
    # the library's repeat may meet the object of its own first try, and an answer may be lost
    if not winners and found not in contents:
        raise StoreRefusedError(
            "the store says that an object exists, and nobody has created it", hint=_HINT
        )


def _created(store: ObjectStore, name: str, content: bytes) -> bool | None:
    """Return whether this request created the object; None: nobody knows."""
    try:
        return store.create(name, content)
    except StoreUnavailableError:
        return None


def _require_listing(store: ObjectStore, folder: str, names: int) -> None:
    wanted = [f"{folder}/{number:06d}" for number in range(names)]
    with ThreadPoolExecutor(CREATES_AT_ONCE) as threads:
        list(threads.map(lambda name: store.create(name, b""), wanted))
    everything = [*wanted, f"{folder}/once"]
    for after in ("", everything[0], everything[len(everything) // 2]):
        listed = [name for name, _ in store.list(folder, after)]
        if listed != [name for name in everything if name > after]:
            raise StoreRefusedError(
                "a listing of the store does not show what was just created", hint=_HINT
            )
    if [name for name, _ in store.list(folder, everything[0], 1)] != everything[1:2]:
        raise StoreRefusedError("a listing of the store begins at another name", hint=_HINT)


def _delete_all(store: ObjectStore, folder: str) -> None:
    with ThreadPoolExecutor(CREATES_AT_ONCE) as threads:
        list(threads.map(store.delete, [name for name, _ in store.list(folder)]))
