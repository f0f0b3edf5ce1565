"""Paths of the data source: one path, a list or globs, as Spark's own readers take them.

``load("DIRECTORY")`` comes as the option ``path``, ``load(["A", "B"])`` as ``paths`` in JSON. Each
is a path or a URI, and may be a glob: ``*``, ``?``, ``[a-z]``, ``{a,b}``. A directory that exists
under the very name is no glob. Wildcards leave out names that begin with a dot or an underscore.

A directory that holds no log is an error that names its content, and how to read that.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from fnmatch import fnmatchcase
from typing import Any
from urllib.parse import unquote

import msgspec
import pyarrow as pa
import pyarrow.fs

from fastjournal.cmdlog.archive import STATE_NAME
from fastjournal.cmdlog.format.layout import segment_number
from fastjournal.cmdlog.locks import APPEND_LOCK
from fastjournal.disk import OsDisk
from fastjournal.errors import BadRequestError, LogFailedError
from fastjournal.foreign.formats import Format, find_format, require_format
from fastjournal.remote.objects import CHECKPOINTS, EPOCHS, FORMAT_NAME, SEGMENTS
from fastjournal.spark.query.source_options import Options
from fastjournal.spark.storage.files import LogDirectory, resolve, translating
from fastjournal.spark.storage.remote_checkpoints import split_checkpoint
from fastjournal.spool.slots import DEAD_NAME, LOCK_NAME, parse_slot_name
from fastjournal.versioned_json import json_fault

NAMES_SHOWN = 3
"""Names of an unknown directory that an error shows."""

_MAGIC = re.compile(r"[*?\[{]")
_BRACES = re.compile(r"\{([^{}]*)\}")
_SNAPSHOT = re.compile(r"[0-9]{8}T[0-9]{6}\.[0-9]{6}Z")
_PARTIAL = ".partial"
"""Ending of a snapshot that is being taken, which wildcards leave out."""
_ONE_DIRECTORY = (
    "load(DIRECTORY), or OPTIONS (path 'DIRECTORY') in SQL; a table that names its columns keeps "
    "its options if spark.sql of a session with fastjournal.spark.register(spark) creates it"
)


def find_directories(options: Options) -> list[str]:
    """Return the directories that options name, globs resolved, in the order of the options.

    Raises:
        BadRequestError: None is named, or no directory matches a glob.
        LogFailedError: A directory of a glob cannot be read.
    """
    given = []
    if options.text("path"):
        given.append(str(options.text("path")))
    if options.text("paths"):
        text = str(options.text("paths"))
        try:
            given += msgspec.json.decode(text, type=list[str])
        except msgspec.DecodeError as error:
            fault = json_fault(text.encode(errors="surrogatepass"), error)
            raise BadRequestError(
                f"the option paths is no JSON list of strings: {fault}", hint=_ONE_DIRECTORY
            ) from error
    if not given:
        raise BadRequestError("no directory is given", hint=_ONE_DIRECTORY)
    return [found for one in given for found in _expand(local_path(one))]


def local_path(path: str) -> str:
    """Return the path of a URI of the scheme ``file``; any other as it is.

    ``file:///a%20b`` is the URI of ``/a b``. Spark writes ``file:/a b``, and quotes nothing.
    """
    if not path.startswith("file:"):
        return path
    if match := re.match("file://(localhost)?(?=/)", path):
        return unquote(path[match.end() :])
    return path.removeprefix("file:")


def open_log(directory: str) -> LogDirectory:
    """Return a log or a snapshot.

    Raises:
        BadRequestError: It is no directory, or holds something else, which is named.
        LogFailedError: It cannot be read.
        LogCorruptError: A snapshot's files are not those that its manifest lists.
    """
    if split_checkpoint(directory)[1] is not None:
        return LogDirectory(directory)
    infos = list_directory(directory)
    log = LogDirectory(directory)
    begun = {str(info.base_name) for info in infos} & {APPEND_LOCK, STATE_NAME}
    if log.segments or log.manifest is not None or begun:
        return log
    raise no_log(directory, infos)


def open_whole(directory: str) -> LogDirectory:
    """Return a log, a snapshot, or an archive with all segments up to the last that it has now.

    A listing may miss a name that the daemon links at the same time, and have a later one. So an
    archive is listed twice: all before the last one of the first time was linked by then.

    Raises:
        BadRequestError: It is no directory, or holds something else, which is named.
        LogFailedError: It cannot be read.
        LogCorruptError: A snapshot's files are not those that its manifest lists.
    """
    log = open_log(directory)
    if not log.is_archive or not log.segments:
        return log
    last, log = log.segments[-1].number, open_log(directory)
    log.segments = [segment for segment in log.segments if segment.number <= last]
    return log


def check_journal(directory: str, journal: Format) -> None:
    """Check that a directory holds a journal of a format.

    Raises:
        BadRequestError: It is no directory, or holds something else, which is named.
    """
    if not list_directory(directory):
        raise no_log(directory, [])
    require_format(OsDisk(), directory, journal)


def check_spool(directory: str) -> None:
    """Check that a directory is a spool; one without any slot has its lock or dead letters.

    Raises:
        BadRequestError: It is no directory, or holds something else, which is named.
    """
    infos = list_directory(directory)
    names = {str(info.base_name) for info in infos}
    if names.isdisjoint({LOCK_NAME, DEAD_NAME}) and not any(map(_is_slot, names)):
        raise no_log(directory, infos)


def newest_snapshot(directory: str) -> str | None:
    """Return the newest snapshot in a directory of snapshots; None: it is another directory."""
    names = [str(info.base_name) for info in list_directory(directory)]
    found = [name for name in names if _SNAPSHOT.fullmatch(name)]
    return f"{directory.rstrip('/')}/{found[-1]}" if found else None


def list_directory(directory: str) -> list[Any]:
    """Return the file infos of pyarrow for a directory, sorted by name.

    Raises:
        BadRequestError: It is missing, or a file.
        LogFailedError: It cannot be read.
    """
    files, path = resolve(directory)
    with translating("list", path):
        info = files.get_file_info(path)
        if info.type == pa.fs.FileType.NotFound:
            raise BadRequestError(f"{directory} does not exist", hint=_beside(files, path))
        if info.type == pa.fs.FileType.File:
            parent = path.rpartition("/")[0]
            raise BadRequestError(f"{directory} is a file", hint=f"name its directory: {parent}")
        found = files.get_file_info(pa.fs.FileSelector(path))
    return sorted(found, key=lambda one: str(one.base_name))


def no_log(directory: str, infos: list[Any]) -> BadRequestError:
    """Return the error for a directory that holds no log; it names its content."""
    holds, advice = _contents(directory, infos)
    return BadRequestError(f"{directory} {holds}", hint=advice)


def _contents(directory: str, infos: list[Any]) -> tuple[str, str]:
    """Return what a directory holds, and what to do about it."""
    names = [str(info.base_name) for info in infos]
    if EPOCHS in names and {CHECKPOINTS, SEGMENTS} & set(names):
        return (
            f"holds objects of a remote log, and no {FORMAT_NAME}",
            "its first start there has not ended, or somebody deleted that object",
        )
    if not names:
        return "is empty", "name the directory of a log, or of a snapshot (fj-cli snapshot)"
    snapshots = [name for name in names if _SNAPSHOT.fullmatch(name)]
    if snapshots:
        return "holds snapshots", f"name one, such as {directory}/{snapshots[-1]}"
    if "events" in names or any(name.startswith("day=") for name in names):
        return "holds events", "add option('view', 'events')"
    if any(name.endswith(".parquet") or name.startswith("dt=") for name in names):
        return "holds Parquet files", "spark.read.parquet reads them"
    if any(map(_is_slot, names)):
        return "holds a spool", "add option('view', 'spool')"
    if any(segment_number(name) is not None for name in names):
        return "holds a log", "its views are records and entries"
    found = None
    if isinstance(resolve(directory)[0], pa.fs.LocalFileSystem):
        found = find_format(OsDisk(), resolve(directory)[1])
    if found is not None:
        return f"holds a journal of {found}", f"add option('journal', '{found}')"
    return f"holds no log, but {_some(names)}", "name the directory of a log or of a snapshot"


def _is_slot(name: str) -> bool:
    return parse_slot_name(name) is not None


def _some(names: list[str]) -> str:
    shown = ", ".join(names[:NAMES_SHOWN])
    more = len(names) - NAMES_SHOWN
    return f"{shown} and {more} more" if more > 0 else shown


def _beside(files: Any, path: str) -> str | None:
    """Return a hint that names what is in the nearest parent directory that exists."""
    parent = path.rpartition("/")[0]
    while parent and files.get_file_info(parent).type != pa.fs.FileType.Directory:
        parent = parent.rpartition("/")[0]
    if not parent:
        return None
    names = sorted(str(one.base_name) for one in files.get_file_info(pa.fs.FileSelector(parent)))
    return f"{parent} has {_some(names)}" if names else f"{parent} is empty"


# --- globs ----------------------------------------------------------------------------------------


def _expand(path: str) -> list[str]:
    if _MAGIC.search(path) is None or _is_directory(path):
        return [path]
    globs = [_split(one) for one in _alternatives(path)]
    found = sorted({match for base, parts in globs for match in _matches(base, parts)})
    if not found:
        files, parent = resolve(globs[0][0])
        raise BadRequestError(
            f"no directory matches {path}", hint=_beside(files, f"{parent.rstrip('/')}/*")
        )
    return found


def _is_directory(path: str) -> bool:
    try:
        files, there = resolve(path)
        with translating("open", path):
            return bool(files.get_file_info(there).type == pa.fs.FileType.Directory)
    except LogFailedError:
        # a glob is no valid URI of some schemes
        return False


def _alternatives(path: str) -> Iterator[str]:
    """Yield a path with each choice of its braces."""
    braces = _BRACES.search(path)
    if braces is None:
        yield path
        return
    for choice in braces[1].split(","):
        yield from _alternatives(path[: braces.start()] + choice + path[braces.end() :])


def _split(path: str) -> tuple[str, list[str]]:
    """Return the directory before the first wildcard, or the last name, and the names after it."""
    wildcard = _MAGIC.search(path)
    stop = len(path) if wildcard is None else wildcard.start()
    base, slash, rest = path[:stop].rpartition("/")
    return base or slash or ".", (rest + path[stop:]).rstrip("/").split("/")


def _matches(base: str, patterns: list[str]) -> list[str]:
    """Return the directories below one that match a pattern for each level."""
    if not patterns:
        return [base]
    pattern, *below = patterns
    files, parent = resolve(base)
    with translating("list", parent):
        if files.get_file_info(parent).type != pa.fs.FileType.Directory:
            return []
        infos = files.get_file_info(pa.fs.FileSelector(parent))
    return [
        found
        for info in infos
        if info.type == pa.fs.FileType.Directory and _fits(str(info.base_name), pattern)
        for found in _matches(f"{base.rstrip('/')}/{info.base_name}", below)
    ]


def _fits(name: str, pattern: str) -> bool:
    if _MAGIC.search(pattern) is None:
        return name == pattern
    if name.endswith(_PARTIAL) or (name[0] in "._" and pattern[0] != name[0]):
        return False
    return fnmatchcase(name, pattern.replace("[^", "[!"))
