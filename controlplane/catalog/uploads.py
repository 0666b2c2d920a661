"""Streams an uploaded adapter to disk and keeps it by its digest. Nothing is ever loaded.

Under `settings.ADAPTER_DIR`: `incoming/<random>/` while an upload is being read and checked, and
`<digest>/` for what was accepted, which is put there by one rename. Memory stays at a few chunks,
whatever is sent; the number of bytes read is limited before they are written.
"""

from __future__ import annotations

import gzip
import hashlib
import io
import os
import secrets
import shutil
import stat
import struct
import tarfile
import time
import zipfile
import zlib
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO, Any, Final, cast

import structlog
from django.conf import settings

from controlplane.domain import adapters, safetensors
from controlplane.domain.adapter_configs import CONFIG_LIMIT_BYTES
from controlplane.domain.adapters import CONFIG_FILE, WEIGHTS_FILE, Check, Package
from controlplane.domain.errors import NoRoom, TooLarge, Unavailable
from controlplane.failures import is_full
from routing_agent.wire import AdapterFile, AdapterFileName

log = structlog.get_logger(__name__)
CHUNK_BYTES: Final = 1024 * 1024
ENTRIES_LIMIT: Final = 1000
# What a .zip says of its entries is read into memory as a whole; a thousand take near 100 KB.
ZIP_DIRECTORY_LIMIT_BYTES: Final = 1024 * 1024
ARCHIVES: Final = (".zip", ".tar", ".tar.gz", ".tgz")
LEFTOVER_AFTER_S: Final = 3600.0


@dataclass(frozen=True, slots=True)
class Incoming:
    """One file of an upload: the name its sender gave it, and its bytes."""

    name: str
    content: IO[bytes]

    @property
    def is_archive(self) -> bool:
        """Say whether it holds the files rather than being one."""
        return self.name.lower().endswith(ARCHIVES)


@dataclass(frozen=True, slots=True, kw_only=True)
class Staged:
    """What an upload amounts to: on disk, not checked yet."""

    folder: Path
    files: tuple[AdapterFile, ...]
    package: Package

    @property
    def size_bytes(self) -> int:
        """Give the bytes it takes."""
        return sum(file.size_bytes for file in self.files)


@dataclass(slots=True)
class _Stage:
    """Takes files in, and counts."""

    folder: Path
    limit_bytes: int
    files: dict[str, AdapterFile] = field(default_factory=dict)
    entries: int = 0

    def see(self, name: str) -> str:
        """Judge an entry by its name and give its role; "" for one that is not needed.

        Raises:
            AdapterRejected: naming the entry, if it is not to be had here.
        """
        self.entries += 1
        if self.entries > ENTRIES_LIMIT:
            raise _fault(f"An upload has at most {ENTRIES_LIMIT} entries.")
        role = adapters.role_of_entry(name)
        if role and role in self.files:
            raise _fault(f"There are two entries {role}; {name!r} is the second.", role)
        return role

    def take(self, name: str, content: IO[bytes]) -> None:
        """Write one of the two files; leave out what is neither.

        Raises:
            AdapterRejected: naming the entry, if it is not to be had here.
            TooLarge: when it is above the limit.
        """
        role = self.see(name)
        if not role:
            return
        limit = CONFIG_LIMIT_BYTES if role == CONFIG_FILE else self.left_bytes
        self.files[role] = _write(self.folder / role, content, limit)

    @property
    def left_bytes(self) -> int:
        """Give how many bytes may still be written."""
        return self.limit_bytes - sum(file.size_bytes for file in self.files.values())


@contextmanager
def storing() -> Iterator[None]:
    """Tell a disk that is full, read-only or broken as what it is: no fault of the upload.

    Raises:
        NoRoom: when it is full, with the system's words.
        Unavailable: when it is read-only or broken.
    """
    try:
        yield
    except OSError as error:
        log.error("adapter_not_stored", why=str(error))
        kind = NoRoom if is_full(error) else Unavailable
        raise kind(
            f"The adapter cannot be stored on the control plane: {error.strerror or error}. Nothing"
            " was kept; upload it again once an admin has seen to the disk.",
            code="storage_failed",
        ) from error


def _write(path: Path, content: IO[bytes], limit_bytes: int) -> AdapterFile:
    sha256, size = hashlib.sha256(), 0
    with storing():
        file = path.open("xb", buffering=0)
    with file:
        while chunk := content.read(CHUNK_BYTES):
            size += len(chunk)
            if size > limit_bytes and path.name == CONFIG_FILE:
                raise _fault(f"{path.name} is above {limit_bytes} bytes.", path.name)
            if size > limit_bytes:
                raise _too_large(path.name, limit_bytes)
            sha256.update(chunk)
            with storing():
                _write_all(file, chunk)
        with storing():
            os.fsync(file.fileno())
    name = cast(AdapterFileName, path.name)
    return AdapterFile(name=name, size_bytes=size, sha256=sha256.hexdigest())


def _write_all(file: io.RawIOBase, chunk: bytes) -> None:
    left = memoryview(chunk)
    while left:
        left = left[file.write(left) or 0 :]


@contextmanager
def staged(uploaded: Sequence[Incoming], *, limit_bytes: int) -> Iterator[Staged]:
    """Write an upload to a folder of its own, which is gone afterwards unless it was kept.

    An upload is the two files, or one archive of them (.zip, .tar, .tar.gz).

    Raises:
        AdapterRejected: naming the entry at fault or the file that is missing.
        TooLarge: when there are more bytes than the limit.
        NoRoom: when the disk is full.
        Unavailable: when it takes none for another reason.
    """
    folder = settings.ADAPTER_DIR / "incoming" / secrets.token_hex(8)
    with storing():
        folder.mkdir(mode=0o700, parents=True)
    try:
        stage = _Stage(folder, limit_bytes)
        for incoming in uploaded:
            _read(incoming, stage, alone=len(uploaded) == 1)
        yield _whole(stage)
    finally:
        shutil.rmtree(folder, ignore_errors=True)  # gone already when it was kept


def _read(incoming: Incoming, stage: _Stage, *, alone: bool) -> None:
    if not incoming.is_archive:
        stage.take(incoming.name, incoming.content)
        return
    stage.see(incoming.name)
    if not alone:
        raise _fault(f"{incoming.name!r} is an archive: send it alone.", incoming.name)
    try:
        if incoming.name.lower().endswith(".zip"):
            _unzip(incoming.content, stage)
        else:
            _untar(incoming, stage)
    except (zipfile.BadZipFile, tarfile.TarError, zlib.error, OSError, EOFError,
            NotImplementedError, ValueError, struct.error) as error:  # fmt: skip
        said = f"{incoming.name!r} cannot be read as an archive: {error}."
        raise _fault(said, incoming.name) from error


def _whole(stage: _Stage) -> Staged:
    for name in (CONFIG_FILE, WEIGHTS_FILE):
        if name not in stage.files:
            raise _fault(
                f"{name} is missing: an adapter is {CONFIG_FILE} and {WEIGHTS_FILE}.", name
            )
    with (stage.folder / WEIGHTS_FILE).open("rb") as file:
        head = file.read(safetensors.LENGTH_BYTES)
        wanted = int.from_bytes(head, "little")
        head += file.read(min(wanted, safetensors.HEADER_LIMIT_BYTES))
    return Staged(
        folder=stage.folder,
        files=tuple(stage.files[name] for name in sorted(stage.files)),
        package=Package(
            config=(stage.folder / CONFIG_FILE).read_bytes(),
            weights_head=head,
            weights_bytes=stage.files[WEIGHTS_FILE].size_bytes,
        ),
    )


def _unzip(content: IO[bytes], stage: _Stage) -> None:
    _check_zip_directory(content)
    with zipfile.ZipFile(content) as archive:
        for entry in archive.infolist():
            name = entry.orig_filename  # `filename` is cut at a NUL
            if entry.is_dir():
                stage.see(name)
                continue
            mode = entry.external_attr >> 16
            if mode and not stat.S_ISREG(mode) and stat.S_IFMT(mode):
                raise _fault(f"{name!r} is a link or a device, no file.", name)
            if entry.flag_bits & 1 or entry.compress_type not in {
                zipfile.ZIP_STORED,
                zipfile.ZIP_DEFLATED,
            }:
                raise _fault(f"{name!r} is encrypted or packed in a way we do not read.", name)
            with archive.open(entry) as inner:
                stage.take(name, inner)


def _check_zip_directory(content: IO[bytes]) -> None:
    """Refuse a .zip whose list of entries is larger than any real one, before it is read."""
    size = content.seek(0, io.SEEK_END)
    tail_from = max(0, size - 65_557)  # the record at the end has 22 bytes and a comment of 64 KiB
    content.seek(tail_from)
    tail = content.read(65_557)
    at = tail.rfind(b"PK\x05\x06")
    if at < 0 or len(tail) < at + 22:
        raise zipfile.BadZipFile("its list of entries is missing")
    is_zip64 = tail[max(0, at - 20) : at].startswith(b"PK\x06\x07")
    (directory_bytes,) = struct.unpack_from("<L", tail, at + 12)
    if is_zip64 or directory_bytes > ZIP_DIRECTORY_LIMIT_BYTES:
        raise zipfile.BadZipFile("its list of entries is larger than an adapter needs")
    content.seek(0)


class _Counted(io.RawIOBase):
    """A stream that refuses to be read or skipped beyond a limit, or in huge pieces.

    `tarfile` reads the headers of an entry as one piece, of the size that the entry declares.
    """

    def __init__(self, inner: IO[bytes], limit_bytes: int) -> None:
        super().__init__()
        self._inner = inner
        self._limit = limit_bytes

    def read(self, size: int = -1) -> bytes:
        if not 0 <= size <= CHUNK_BYTES:
            raise tarfile.ReadError("a header of it is larger than any real one")
        self._check(self._inner.tell() + size)
        return self._inner.read(size)

    def seek(self, offset: int, whence: int = io.SEEK_SET) -> int:
        if whence == io.SEEK_SET:
            self._check(offset)
        return self._inner.seek(offset, whence)

    def tell(self) -> int:
        return self._inner.tell()

    def _check(self, end: int) -> None:
        # Headers and padding, a few KB an entry, come on top.
        if end > self._limit + ENTRIES_LIMIT * 8192:
            raise _too_large("The archive, unpacked,", self._limit)


def _untar(incoming: Incoming, stage: _Stage) -> None:
    is_packed = not incoming.name.lower().endswith(".tar")
    inner: Any = gzip.GzipFile(fileobj=incoming.content) if is_packed else incoming.content
    stream = cast(IO[bytes], _Counted(inner, stage.limit_bytes))
    with tarfile.open(fileobj=stream, mode="r:") as archive:
        for entry in archive:
            if entry.isdir():
                stage.see(entry.name)
                continue
            if not entry.isreg() or entry.issparse():
                raise _fault(f"{entry.name!r} is a link or a device, no file.", entry.name)
            content = archive.extractfile(entry)
            if content is not None:
                stage.take(entry.name, content)


def keep(upload: Staged, digest: str) -> None:
    """Put an upload where it is found by its digest, at once and whole.

    Call it inside the transaction that stores its row, after the fleet revision was raised: that
    lock keeps `forget` of the same content away.
    """
    place = folder_of(digest)
    if (place / WEIGHTS_FILE).exists():  # the same content is there already, of this or another
        return
    with storing():
        place.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        upload.folder.rename(place)
        _sync(place)
        _sync(place.parent)


def _sync(folder: Path) -> None:
    handle = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def folder_of(digest: str) -> Path:
    """Give the folder of a stored package."""
    return Path(settings.ADAPTER_DIR) / digest


def forget(digest: str) -> None:
    """Remove a stored package; twice is harmless."""
    shutil.rmtree(folder_of(digest), ignore_errors=True)


def forget_leftovers() -> int:
    """Remove stages that a crash left behind, and say how many.

    Packages that no row knows stay: after a database was lost they are what is left to apply.
    """
    now, count = time.time(), 0
    for folder in Path(settings.ADAPTER_DIR).glob("incoming/*"):
        if now - folder.stat().st_mtime > LEFTOVER_AFTER_S:
            shutil.rmtree(folder, ignore_errors=True)
            count += 1
    return count


def _fault(said: str, entry: str = "") -> adapters.AdapterRejected:
    shown = entry if len(entry) <= 120 else f"{entry[:120]}…"
    return adapters.rejected(Check(name="Files", passed=False, said=said[:400], field=shown))


def _too_large(what: str, limit_bytes: int) -> TooLarge:
    return TooLarge(f"{what} has more than {limit_bytes} bytes, which is the most.")
