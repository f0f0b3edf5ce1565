"""Files of a foreign journal that is being written, in a directory of its own."""

from __future__ import annotations

from fastjournal.disk import Disk, DiskFile

BUFFER_BYTES = 1 << 20


class JournalFiles:
    """Writes one file after the other, in large pieces, each synced when it ends.

    Attributes:
        files: Number of files so far.
        bytes: Bytes of all files so far.
        file_bytes: Bytes of the file that is open.

    Args:
        disk: Where they are.
        directory: Exists.
        like: A file whose mode they get.
    """

    def __init__(self, disk: Disk, directory: str, like: str) -> None:
        self._disk = disk
        self._directory = directory
        self._like = like
        self._file: DiskFile | None = None
        self._buffer = bytearray()
        self.files = self.bytes = self.file_bytes = 0

    def begin(self, name: str) -> None:
        """End the file that is open, and create another."""
        self.end()
        self._file = self._disk.create(f"{self._directory}/{name}", like=self._like)
        self.files += 1

    def write(self, data: bytes) -> None:
        """Append to the file that is open."""
        self._buffer += data
        self.bytes += len(data)
        self.file_bytes += len(data)
        if len(self._buffer) >= BUFFER_BYTES:
            self._flush()

    def end(self) -> None:
        """Sync and close the file that is open, if there is one."""
        if self._file is None:
            return
        try:
            self._flush()
            self._file.sync()
        finally:
            self.close()

    def close(self) -> None:
        """Close the file that is open, without a sync; the rest of it is lost."""
        file, self._file = self._file, None
        self._buffer.clear()
        self.file_bytes = 0
        if file is not None:
            file.close()

    def _flush(self) -> None:
        assert self._file is not None
        self._file.write(bytes(self._buffer))
        self._buffer.clear()
