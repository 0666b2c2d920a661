"""Puts uploaded files into the temporary folder, each whole or not at all."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import Any

from django.core.files.uploadhandler import TemporaryFileUploadHandler


class FileHandler(TemporaryFileUploadHandler):
    """Takes the file that is being written away at once when that fails.

    Django closes the files that were complete and leaves this one to the garbage collector: on a
    full disk it would go on taking the room that is missing.
    """

    def receive_data_chunk(self, raw_data: bytes, start: int) -> Any:
        """Write a piece."""
        with self.whole_or_gone():
            return super().receive_data_chunk(raw_data, start)

    def file_complete(self, file_size: int) -> Any:
        """Give the file; what was still to be written may not find room."""
        with self.whole_or_gone():
            return super().file_complete(file_size)

    @contextmanager
    def whole_or_gone(self) -> Iterator[None]:
        """Delete the file if what is done with it fails."""
        try:
            yield
        except Exception:
            with suppress(OSError):  # closing writes the rest, which fails again
                self.file.close()
            raise
