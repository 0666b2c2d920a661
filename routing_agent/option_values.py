"""What single options mean: keys, sizes, addresses, files; what cannot be obeyed is ConfigError."""

from __future__ import annotations

import hashlib
import os
import socket
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from routing_agent.gpu import SimulatedGpus
from routing_agent.http_client import split_url

TOKEN_VARIABLE: Final = "SIGNALBOX_TOKEN"  # noqa: S105 - the variable's name


class ConfigError(ValueError):
    """An option that cannot be obeyed; the message says which and why."""


@dataclass(frozen=True, slots=True)
class ClientKey:
    """A client key by its hash, and whom it belongs to."""

    sha256: str
    tenant: str


def client_keys(text: str | None) -> tuple[ClientKey, ...]:
    """Read a key file: a line is a key, or a tenant and its key; # starts a comment line."""
    if text is None:
        return ()
    keys = []
    for number, line in enumerate(text.splitlines(), 1):
        words = line.split()
        if not words or words[0].startswith("#"):
            continue
        if len(words) > 2:
            raise ConfigError(f"--client-key-file, line {number}: expected KEY or TENANT KEY")
        digest = hashlib.sha256(words[-1].encode()).hexdigest()
        keys.append(ClientKey(digest, words[0] if len(words) == 2 else "local"))
    if not keys:
        raise ConfigError("--client-key-file has no key; leave the option out for open access")
    return tuple(keys)


def simulated_gpus(text: str | None) -> SimulatedGpus | None:
    """Read N,MODEL,MEMORY, the memory in bytes or with GB or GiB."""
    if text is None:
        return None
    try:
        count, model, memory = text.split(",")
        return SimulatedGpus(int(count), model.strip(), memory_bytes(memory))
    except ValueError:
        raise ConfigError(f"--simulated-gpus {text!r}: expected N,MODEL,MEMORY") from None


def size_bytes(option: str, text: str) -> int:
    """Read an option that is an amount of memory or disk."""
    try:
        return memory_bytes(text)
    except ValueError:
        raise ConfigError(f"{option} {text!r}: expected a size, as 50GB") from None


def memory_bytes(text: str) -> int:
    """Read an amount of memory: 80GB, 80GiB, or bytes."""
    units = {"GiB": 2**30, "GB": 10**9, "MiB": 2**20, "MB": 10**6}
    for unit, factor in units.items():
        if text.strip().endswith(unit):
            return int(float(text.strip().removesuffix(unit)) * factor)
    return int(text)


def file_words(content: Mapping[str, Any]) -> list[str]:
    """Turn a configuration file into the options it stands for."""
    words: list[str] = []
    for key, value in content.items():
        option = "--" + key.replace("_", "-")
        if isinstance(value, dict):
            words += [word for k, v in value.items() for word in (option, f"{k}={v}")]
        elif isinstance(value, list):
            words += [option, *map(str, value)]
        elif isinstance(value, bool):
            words += [option] if value else []
        else:
            words += [option, str(value)]
    return words


def alias(text: str) -> tuple[str, str]:
    """Read NAME=MODEL."""
    name, separator, model = text.partition("=")
    if not (name and separator and model):
        raise ConfigError(f"--alias {text!r}: expected NAME=MODEL")
    return name, model


def base_url(option: str, url: str) -> str:
    """Read an address, without a slash at its end."""
    try:
        split_url(url)
    except ValueError as error:
        raise ConfigError(f"{option}: {error}") from None
    return url.rstrip("/")


def port_number(option: str, port: int | None) -> int | None:
    """Check a port that may be left to choose (None) or not be wanted (0)."""
    if port is not None and not 0 <= port <= 65535:
        raise ConfigError(f"{option} {port}: a port is between 0 and 65535")
    return port


def reachable(host: str) -> str:
    """Give how others reach what listens on `host`."""
    return socket.gethostname() if host in ("", "0.0.0.0", "::") else host  # noqa: S104 - compared


def text_of(option: str, path: Path | None) -> str | None:
    """Read the file of an option; `None` if there is none."""
    if path is None:
        return None
    try:
        return path.read_text()
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"{option}: {path} cannot be read ({error})") from None


def token(path: Path | None) -> str:
    """Give the one-time token; a registered agent needs none, so its file may be gone."""
    if path is None or not path.exists():
        return os.environ.get(TOKEN_VARIABLE, "").strip()
    return (text_of("--token-file", path) or "").strip()
