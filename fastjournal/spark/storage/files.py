"""Log directories and snapshots on any file system that pyarrow reaches.

File systems are opened by URI, with bounds for stores that cannot be reached or do not answer.
Without these a request to Google's store is tried again for 15 minutes, and one to S3 that nobody
answers for minutes.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import Any

import msgspec
import pyarrow as pa
import pyarrow.fs

from fastjournal.cmdlog.archive import STATE_NAME, ArchivedSegment, archived_segment
from fastjournal.cmdlog.format.layout import segment_name, segment_number
from fastjournal.cmdlog.live_index import LIVE_NAME
from fastjournal.cmdlog.locks import APPEND_LOCK, lock_to_read
from fastjournal.cmdlog.snapshot import (
    FORMAT,
    MANIFEST_NAME,
    VERSION,
    Manifest,
    ManifestSegment,
    decode_manifest,
    enclosing_snapshot,
)
from fastjournal.disk import OsDisk
from fastjournal.errors import BadRequestError, LogCorruptError, LogFailedError
from fastjournal.remote.objects import FORMAT_NAME, checkpoint_name, live_name
from fastjournal.spark.storage.remote_checkpoints import (
    PrefixFiles,
    RemoteSnapshot,
    find_snapshot,
    naming,
    split_checkpoint,
)

CONNECT_TIMEOUT_S = 10.0
"""For a connection to S3; three are tried."""
REQUEST_TIMEOUT_S = 20.0
"""For a reply of S3 without any byte. While it copies some GiB, it sends spaces."""
RETRY_LIMIT_S = 60
"""Time in which a request to Google's store is tried again."""

_GOOGLE = ("gs://", "gcs://")
_AZURE, _AZURE_ACCOUNT, _AZURE_KEY = (
    "az://",
    "AZURE_STORAGE_ACCOUNT_NAME",
    "AZURE_STORAGE_ACCOUNT_KEY",
)
_RETRY_OPTION = "retry_limit_seconds="
_GOOGLE_ERROR = re.compile(r"google::cloud::Status\((.*?)(?: error_info=.*)?\)\Z", re.S)
_LOCAL_ERROR = re.compile(r"\[Errno \d+\] .*Detail: \[errno \d+\] (.*)", re.S)
_LAST_MESSAGE = re.compile(r".*with a last message of ", re.S)

LOG_IN_USE = "a log in use is cleaned; take a snapshot and read that"


class SegmentFile(msgspec.Struct, frozen=True):
    """One segment of a listed directory."""

    path: str
    """As its file system knows it, without a scheme."""
    number: int
    bytes: int
    last: bool
    """The last one: it may end in a group that is not all there."""
    open: bool
    """It may still be written to, so that its tail may be torn; never so in a snapshot."""
    crc32c: int | None = None
    """Checksum of the whole file, where a manifest, or its name in an archive, says it."""


class LogDirectory:
    """A log directory, a snapshot, or a checkpoint of a remote log.

    Args:
        uri: A path, or a URI whose scheme pyarrow knows (``file:``, ``s3:``, ``gs:``, ``hdfs:``).
            A remote log is named by its prefix: its newest checkpoint is read; or by the path of a
            checkpoint.

    Raises:
        LogFailedError: It cannot be read.
        LogCorruptError: A snapshot's files are not those that its manifest lists.
        RemoteLogCorruptError: An object of a remote log is damaged, missing or of another version.
    """

    def __init__(self, uri: str | os.PathLike[str]) -> None:
        self.uri = str(uri)
        """Path or URI by which an executor opens the same one; of a remote log its checkpoint."""
        self.files, path = resolve(uri)
        self.path, wanted = split_checkpoint(path)
        self.name = self.path.rpartition("/")[2]
        """Name of a snapshot."""
        self.remote: RemoteSnapshot | None = None
        """Checkpoint of a remote log; None: it is none."""
        self.live_path = f"{self.path}/{LIVE_NAME}"
        self.manifest: Manifest | None = None
        """Of a checkpoint: what it says, without times, and without numbers of records (0)."""
        self.segments: list[SegmentFile] = []
        self.is_archive = False
        """Its segments are those of an archive, whose numbers ascend by one."""
        self.has_archive_state = False
        """An archive that a daemon writes; a copy may lack the state."""
        self.archived: dict[ArchivedSegment, int] = {}
        """Files of an archive, and their sizes in bytes; also shorter versions of segments."""
        self.live_bytes: int | None = None
        """Size of the live index; None: there is none."""
        with translating("list", self.path):
            found = self.files.get_file_info(pa.fs.FileSelector(self.path))
        sizes = {info.base_name: info.size for info in found if info.is_file}
        if wanted is not None or (
            FORMAT_NAME in sizes
            and MANIFEST_NAME not in sizes
            and not any(map(segment_number, sizes))
        ):
            with naming(self.path):
                self.remote = find_snapshot(PrefixFiles(self.files, self.path), wanted)
            self._take_checkpoint(self.remote)
            return
        self._take_files(sizes)

    def _take_files(self, sizes: dict[str, int]) -> None:
        self.has_archive_state = STATE_NAME in sizes
        self.live_bytes = sizes.get(LIVE_NAME)
        # else a daemon has started on a copy of a snapshot: it is a log again
        if MANIFEST_NAME in sizes and APPEND_LOCK not in sizes:
            self.manifest = self._read_manifest()
            self._check_sizes(self.manifest, sizes)
        checksums: dict[str, int] = {}
        if self.manifest is not None:
            checksums = {one.name: int(one.crc32c, 16) for one in self.manifest.segments}
        names: dict[int, str] = {}
        for name, size in sizes.items():
            number, archived = segment_number(name), archived_segment(name)
            if archived is not None:
                self.is_archive = True
                self.archived[archived] = size
                number, checksums[name] = archived
            # a segment that grew is twice in an archive, and the longer file has all of it
            if number is not None and (number not in names or sizes[names[number]] < size):
                names[number] = name
        newest = max(names, default=0)
        for number, name in sorted(names.items()):
            last = number == newest
            self.segments.append(
                SegmentFile(
                    path=f"{self.path}/{name}",
                    number=number,
                    bytes=sizes[name],
                    last=last,
                    open=last and name not in checksums,
                    crc32c=checksums.get(name),
                )
            )

    def _take_checkpoint(self, remote: RemoteSnapshot) -> None:
        """Take the segments of a checkpoint."""
        listed = remote.checkpoint.segments
        self.uri = below(split_checkpoint(self.uri)[0], checkpoint_name(remote.behind))
        self.name = f"{remote.behind.epoch:010d}-{remote.behind.number:012d}"
        self.live_bytes = remote.live_bytes
        self.live_path = f"{self.path}/{live_name(remote.behind)}"
        for one in listed:
            path = remote.segment_path(self.path, one)
            last = one == listed[-1]
            self.segments.append(
                SegmentFile(path, one.number, one.bytes, last=last, open=False, crc32c=one.crc32c)
            )
        self.manifest = Manifest(
            format=FORMAT,
            version=VERSION,
            taken_us=remote.checkpoint.time_us,
            segments=[
                ManifestSegment(
                    name=segment_name(one.number),
                    number=one.number,
                    bytes=one.bytes,
                    crc32c=f"{one.crc32c:08x}",
                    first_us=None,
                    last_us=None,
                    records=0,
                    min_us=None,
                    max_us=None,
                )
                for one in listed
            ],
            records=0,
            bytes=sum(one.bytes for one in listed),
        )

    def _read_manifest(self) -> Manifest:
        path = f"{self.path}/{MANIFEST_NAME}"
        return decode_manifest(read_file(self.files, path), path)

    def _check_sizes(self, manifest: Manifest, sizes: dict[str, int]) -> None:
        listed = {segment.name: segment.bytes for segment in manifest.segments}
        for name, size in listed.items():
            if sizes.get(name) != size:
                found = "is missing" if name not in sizes else f"has {sizes[name]} bytes"
                raise LogCorruptError(
                    f"the segment {found}, the manifest says {size} bytes",
                    path=f"{self.path}/{name}",
                )
        for name in sizes:
            if segment_number(name) is not None and name not in listed:
                raise LogCorruptError(
                    "the manifest does not list this segment", path=f"{self.path}/{name}"
                )


def modes_of(directory: LogDirectory) -> tuple[int, int]:
    """Return the modes that files and directories with data of a log may have at most."""
    if not isinstance(directory.files, pa.fs.LocalFileSystem):
        return 0o640, 0o750
    with translating("read", directory.path):
        whole = os.stat(directory.path).st_mode & 0o777
        file = whole
        for segment in directory.segments:
            file &= os.stat(segment.path).st_mode
    return file & 0o666 | 0o600, whole | 0o700


def create_directory(files: Any, path: str, mode: int) -> None:
    """Create a directory and its parents, on this machine with this mode at most."""
    if not isinstance(files, pa.fs.LocalFileSystem):
        files.create_dir(path, recursive=True)
    elif not os.path.isdir(path):
        create_directory(files, os.path.dirname(path), mode)
        with suppress(FileExistsError):
            os.mkdir(path, mode)


def create_file(files: Any, path: str, mode: int) -> None:
    """Create an empty file, on this machine with this mode at most; what writes it keeps that."""
    if isinstance(files, pa.fs.LocalFileSystem):
        os.close(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, mode))


def sync(files: Any, path: str) -> None:
    """Sync a file or a directory of this machine; an object store has what it has acknowledged."""
    if isinstance(files, pa.fs.LocalFileSystem):
        descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)


_S3_SCHEMES = ("s3://", "s3a://")
"""Schemes of S3: that of pyarrow, and that of Spark's own readers and writers."""


def is_s3(uri: str) -> bool:
    """Whether a path or URI is one of S3, by either scheme."""
    return uri.startswith(_S3_SCHEMES)


def pyarrow_uri(uri: str) -> str:
    """Return a path or URI as pyarrow knows it: its S3 has the scheme ``s3``."""
    return f"s3://{uri.partition('://')[2]}" if is_s3(uri) else uri


def hadoop_uri(uri: str) -> str:
    """Return a path or URI as Spark's own writers know it: its S3 has the scheme ``s3a``."""
    if is_s3(uri):
        return f"s3a://{uri.partition('://')[2]}"
    return uri if "://" in uri else f"file://{os.path.abspath(uri)}"


_GLOB = re.compile(r"[\\*?\[\]{}]")


def hadoop_glob(uri: str) -> str:
    """Return what Spark's own readers take for a path or URI: they take each path for a glob."""
    return _GLOB.sub(r"\\\g<0>", hadoop_uri(uri))


def below(uri: str, name: str) -> str:
    """Return the path or URI of something in a directory; options of the URI stay at the end."""
    place, mark, options = uri.partition("?") if "://" in uri else (uri, "", "")
    return f"{place.rstrip('/')}/{name}{mark}{options}"


def resolve(uri: str | os.PathLike[str]) -> tuple[Any, str]:
    """Return the pyarrow file system and the path in it of a path or URI.

    Raises:
        BadRequestError: The path is empty: no directory is named.
        LogFailedError: The scheme is unknown, or its file system cannot be reached.
    """
    text = pyarrow_uri(str(uri))
    if not text:
        raise BadRequestError("an empty path names no directory", hint="name a path or a URI")
    with translating("open", text):
        if ":" in text.partition("/")[0]:
            files, path = open_file_system(text)
        else:
            files, path = pa.fs.LocalFileSystem(), os.path.abspath(text)
    return files, path.rstrip("/") or "/"


def check_outside_snapshots(files: Any, path: str) -> None:
    """Check that a directory to write to is in no snapshot of this machine.

    Raises:
        BadRequestError: It is in one.
    """
    if isinstance(files, pa.fs.LocalFileSystem):
        snapshot = enclosing_snapshot(OsDisk(), path)
        if snapshot is not None:
            raise BadRequestError(
                f"{path} is in the snapshot {snapshot}, which never changes",
                hint="name another directory",
            )


def read_file(files: Any, path: str) -> bytes:
    """Return a whole file. It is not mapped: a daemon that starts may cut a torn tail.

    Raises:
        LogFailedError: It cannot be read.
    """
    with translating("read", path), files.open_input_file(path) as file:
        data: bytes = file.read()
        return data


def read_locked(files: Any, path: str) -> bytes:
    """Return a whole segment; on this machine's disks wait while one of its log is replaced.

    Raises:
        LogFailedError: It cannot be read.
        LogLockedError: The wait was too long.
    """
    if not isinstance(files, pa.fs.LocalFileSystem):
        return read_file(files, path)
    with lock_to_read(OsDisk(), os.path.dirname(path)):
        return read_file(files, path)


@contextmanager
def translating(action: str, path: str) -> Iterator[None]:
    """Raise what pyarrow raises in the block as a ``LogFailedError``."""
    try:
        yield
    except (OSError, pa.ArrowException) as error:
        raise LogFailedError(f"cannot {action}: {error_text(error)}", path=path) from error


def open_file_system(uri: str) -> tuple[Any, str]:
    """Return the file system of a URI, and the path there; errors are those of pyarrow.

    The option ``retry_limit_seconds`` of a URI of Google's store holds, if it has one. A URI
    ``az://container/path`` is as obstore knows it: the environment has account and key.

    Raises:
        BadRequestError: The environment has no account for a URI of Azure.
    """
    if uri.startswith(_AZURE):
        account = os.environ.get(_AZURE_ACCOUNT)
        if not account:
            raise BadRequestError(f"{uri} needs an account", hint=f"set {_AZURE_ACCOUNT}")
        key = os.environ.get(_AZURE_KEY)
        azure = pyarrow.fs.AzureFileSystem(account_name=account, account_key=key)
        return azure, uri.removeprefix(_AZURE)
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
