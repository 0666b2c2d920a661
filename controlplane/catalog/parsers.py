"""Reads an upload's multipart body: files go to disk as they come, names as they were sent.

Django cuts a file's name down to its last part; here a name that leads elsewhere is refused.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from django.conf import settings
from django.http.multipartparser import MultiPartParser as DjangoParser
from django.http.multipartparser import MultiPartParserError
from rest_framework.exceptions import ParseError
from rest_framework.parsers import BaseParser, DataAndFiles

from controlplane.catalog.uploads import Incoming, storing
from controlplane.domain import adapters
from controlplane.domain.errors import TooLarge
from controlplane.upload_files import FileHandler

# Fields, boundaries and headers beside the files.
OVERHEAD_BYTES = 1024 * 1024


class _Parser(DjangoParser):
    """Keeps the names of files as they were sent."""

    def sanitize_file_name(self, file_name: str) -> str:
        return file_name


class _Handler(FileHandler):
    """Writes files to disk, judges their names, and counts all bytes."""

    received_bytes = 0

    def new_file(self, field_name: str, file_name: str, *args: Any, **kwargs: Any) -> None:
        adapters.role_of_entry(file_name)
        super().new_file(field_name, file_name, *args, **kwargs)

    def receive_data_chunk(self, raw_data: bytes, start: int) -> Any:
        self.received_bytes += len(raw_data)
        with self.whole_or_gone(), storing():
            if self.received_bytes > settings.ADAPTER_LIMIT_BYTES + OVERHEAD_BYTES:
                raise TooLarge(
                    f"An adapter has at most {settings.ADAPTER_LIMIT_BYTES} bytes; more was sent."
                )
            return super().receive_data_chunk(raw_data, start)

    def file_complete(self, file_size: int) -> Any:
        with storing():
            return super().file_complete(file_size)


class AdapterParser(BaseParser):
    """`multipart/form-data` with one archive or the two files, under any field names."""

    media_type = "multipart/form-data"

    def parse(
        self,
        stream: Any,
        media_type: str | None = None,
        parser_context: Mapping[str, Any] | None = None,
    ) -> DataAndFiles:
        """Give fields and files."""
        meta = stream.META.copy()
        meta["CONTENT_TYPE"] = media_type
        try:
            return DataAndFiles(*_Parser(meta, stream, [_Handler()], "utf-8").parse())
        except MultiPartParserError as error:
            raise ParseError(f"The form cannot be read: {error}") from error


def incoming(files: Any) -> list[Incoming]:
    """Give the files of a request, whatever their fields are called."""
    return [Incoming(file.name or "", file) for _, group in files.lists() for file in group]
