"""The files of adapters on this node's disk: fetched once, checked by hash, bounded in size.

A folder below `<digest>` is whole: it is written beside and renamed when every file's hash was
found right. A fetch that broke off goes on with the files it has. What was used longest ago makes
room, never what an engine here holds or is to hold: engines read adapters from disk again.
"""

from __future__ import annotations

import asyncio
import hashlib
import os
import shutil
from collections import defaultdict
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import BinaryIO, Final
from urllib.parse import quote

import structlog

from routing_agent.control.identity import error_text
from routing_agent.core.upkeep import PackageUnavailable
from routing_agent.http_client import CallFailed, HttpClient
from routing_agent.metrics import Metrics
from routing_agent.wire import Adapter, AdapterFile

log = structlog.get_logger()

FILES_PATH: Final = "/api/v1/agent/adapters"
PARTIAL: Final = ".partial"
STALL_LIMIT_S: Final = 30.0  # between two pieces of a file
PIECE_BYTES: Final = 1024 * 1024  # written and hashed at once, away from the loop
FETCHES_AT_ONCE: Final = 2
DIGEST_DIGITS: Final = 12  # of those that `in_use` gives


@dataclass
class PackageStore:
    """The adapters that this node has on its disk."""

    folder: Path  # absolute: its paths are given to engines
    limit_bytes: int
    url: str  # of the control plane
    token: str = field(repr=False)
    client: HttpClient  # to the control plane
    metrics: Metrics
    in_use: Callable[[], set[str]] = field(default=set)  # beginnings of digests
    _locks: defaultdict[str, asyncio.Lock] = field(
        default_factory=lambda: defaultdict(asyncio.Lock)
    )
    _turns: asyncio.Semaphore = field(default_factory=lambda: asyncio.Semaphore(FETCHES_AT_ONCE))
    _room: asyncio.Lock = field(default_factory=asyncio.Lock)
    _claims: dict[str, int] = field(default_factory=dict)  # bytes that fetches are to bring
    _checked: set[str] = field(default_factory=set)  # digests whose files were read in this life

    async def folder_of(self, adapter: Adapter) -> Path:
        """Give the folder with an adapter's files; raises PackageUnavailable."""
        digest, place = adapter.digest, self.folder / adapter.digest
        async with self._locks[digest]:
            try:
                if not await asyncio.to_thread(self._is_whole, adapter, place):
                    await self._fetch(adapter, place)
                await asyncio.to_thread(os.utime, place)
            except OSError as error:
                raise PackageUnavailable(f"{self.folder}: {error.strerror or error}") from None
        return place

    def used_bytes(self) -> int:
        """Give what all packages take on the disk."""
        return sum(size for _, size in self._by_age())

    # -- fetching ------------------------------------------------------------------------------

    def _is_whole(self, adapter: Adapter, place: Path) -> bool:
        """Say whether all files are there; their hashes are read once in an agent's life."""
        if not place.is_dir():
            return False
        check = adapter.digest not in self._checked
        for file in adapter.files:
            if not _is_sound(place / file.name, file, by_hash=check):
                log.error("adapter_package_damaged", digest=adapter.digest, file=file.name)
                shutil.rmtree(place)
                return False
        self._checked.add(adapter.digest)
        return True

    async def _fetch(self, adapter: Adapter, place: Path) -> None:
        partial = place.with_name(place.name + PARTIAL)
        async with self._turns:
            try:
                await self._make_room(adapter)
                await asyncio.to_thread(partial.mkdir, parents=True, exist_ok=True)
                for file in adapter.files:
                    await self._fetch_file(adapter, file, partial / file.name)
                await asyncio.to_thread(_put_in_place, partial, place)
            except CallFailed as error:
                self.metrics.adapter_steps["fetch", "failed"] += 1
                raise PackageUnavailable(f"Its files could not be fetched: {error}.") from None
            finally:
                self._claims.pop(adapter.digest, None)
        self._checked.add(adapter.digest)
        self.metrics.adapter_steps["fetch", "done"] += 1
        log.info("adapter_fetched", digest=adapter.digest, size_bytes=_size(adapter))

    async def _fetch_file(self, adapter: Adapter, file: AdapterFile, path: Path) -> None:
        if await asyncio.to_thread(_is_sound, path, file, by_hash=True):
            return  # an earlier fetch got so far
        with path.open("wb") as target:
            writing = _Writing(target)
            answer = await self.client.download(
                f"{self.url}{FILES_PATH}/{adapter.digest}/{quote(file.name, safe='')}",
                headers={"authorization": f"Bearer {self.token}"},
                take=writing.take,
                limit_bytes=max(file.size_bytes, 64 * 1024),
                stall_s=STALL_LIMIT_S,
            )
            await writing.finish()
        if answer.status != 200:
            why = error_text(answer.body)
            raise CallFailed(f"the control plane answered {answer.status} {why}".rstrip(". "))
        self.metrics.adapter_bytes += writing.size_bytes
        if writing.size_bytes != file.size_bytes or writing.digest.hexdigest() != file.sha256:
            await asyncio.to_thread(path.unlink)
            raise CallFailed(f"{file.name} is not what the table says: another size or SHA-256")

    # -- room ----------------------------------------------------------------------------------

    async def _make_room(self, adapter: Adapter) -> None:
        """Remove what was used longest ago until an adapter fits; raises PackageUnavailable."""
        async with self._room:
            self._claims[adapter.digest] = _size(adapter)
            kept = self.in_use() | {digest[:DIGEST_DIGITS] for digest in self._claims}
            await asyncio.to_thread(self._remove_oldest, kept, dict(self._claims))

    def _remove_oldest(self, kept: set[str], claims: dict[str, int]) -> None:
        packages = self._by_age()
        claimed = sum(claims.values())
        used = sum(size for path, size in packages if path.name.removesuffix(PARTIAL) not in claims)
        for path, size in packages:
            if used + claimed <= self.limit_bytes:
                return
            if path.name[:DIGEST_DIGITS] not in kept:
                log.info("adapter_package_removed", digest=path.name, size_bytes=size)
                shutil.rmtree(path)
                self._checked.discard(path.name)
                used -= size
        if used + claimed > self.limit_bytes:
            raise PackageUnavailable(
                f"This node's adapter cache of {self.limit_bytes} bytes is full of adapters in"
                f" use ({used} bytes): give the agent a larger --adapter-cache."
            )

    def _by_age(self) -> list[tuple[Path, int]]:
        """Give the packages with their sizes, those used longest ago first."""
        if not self.folder.is_dir():
            return []
        found = []
        for path in self.folder.iterdir():
            with suppress(FileNotFoundError):  # it is being put in place or removed
                if path.is_dir():
                    size = sum(file.stat().st_size for file in path.iterdir())
                    found.append((path.stat().st_mtime, path, size))
        return [(path, size) for _, path, size in sorted(found)]


@dataclass
class _Writing:
    """One file that is being written: in large pieces, on a thread, hashed on the way."""

    target: BinaryIO
    digest: hashlib._Hash = field(default_factory=hashlib.sha256)
    size_bytes: int = 0
    _waiting: list[bytes] = field(default_factory=list)
    _waiting_bytes: int = 0

    async def take(self, piece: bytes) -> None:
        self._waiting.append(piece)
        self._waiting_bytes += len(piece)
        if self._waiting_bytes >= PIECE_BYTES:
            await self._write()

    async def finish(self) -> None:
        await self._write()
        await asyncio.to_thread(os.fsync, self.target.fileno())

    async def _write(self) -> None:
        data = b"".join(self._waiting)
        self._waiting.clear()
        self._waiting_bytes = 0
        self.size_bytes += len(data)
        await asyncio.to_thread(self._write_now, data)

    def _write_now(self, data: bytes) -> None:
        try:
            self.target.write(data)
            self.target.flush()
        except OSError as error:  # told apart from a fault of the connection
            raise PackageUnavailable(f"{self.target.name}: {error.strerror}") from None
        self.digest.update(data)


def _is_sound(path: Path, file: AdapterFile, *, by_hash: bool) -> bool:
    try:
        if path.stat().st_size != file.size_bytes:
            return False
        if not by_hash:
            return True
        with path.open("rb") as content:
            return hashlib.file_digest(content, "sha256").hexdigest() == file.sha256
    except FileNotFoundError:
        return False


def _put_in_place(partial: Path, place: Path) -> None:
    if place.exists():
        shutil.rmtree(place)
    partial.rename(place)
    descriptor = os.open(place.parent, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _size(adapter: Adapter) -> int:
    return sum(file.size_bytes for file in adapter.files)
