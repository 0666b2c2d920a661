"""What a LoRA adapter must satisfy to be taken in: names, entries of an upload, and all its checks.

Nothing here loads anything: the configuration is JSON, of the weights only the header is read.
Which features are refused follows what engines refuse (vLLM's PEFT checks) or crash on.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from controlplane.domain import adapter_configs, adapter_tensors, safetensors
from controlplane.domain.amounts import counted
from controlplane.domain.errors import Invalid
from routing_agent.wire import ADAPTER_FILES, SERVED_NAME_DIGITS, AdapterFile

CONFIG_FILE, WEIGHTS_FILE = ADAPTER_FILES
NAME_RULE: Final = (
    "A name has 1 to 100 letters, digits and . _ -, and begins and ends with a letter or digit."
)
_NAME: Final = re.compile(r"[A-Za-z0-9](?:[A-Za-z0-9._-]{0,98}[A-Za-z0-9])?\Z")

# Loading these runs code that is inside them.
_PICKLES: Final = (".bin", ".pt", ".pth", ".pkl", ".pickle", ".ckpt", ".joblib", ".npy", ".npz")
_DRIVE: Final = re.compile(r"[A-Za-z]:")
_SHOWN: Final = 120  # characters of an entry's name in a message


class AdapterRejected(Invalid):
    """An upload that is not taken in; `details` lists every check that was made."""

    default_code = "adapter_rejected"


@dataclass(frozen=True, slots=True, kw_only=True)
class BaseModel:
    """What is known of the model an adapter is meant for; `None` = not known, so not checked."""

    model: str
    names: tuple[str, ...]  # under which an adapter's configuration may name it
    pool: str = ""  # the pool the uploader named, if any
    kind: str = "chat"
    max_rank: int = 64  # the largest that any pool of the model allows
    layers: int | None = None
    kv_width: int | None = None  # kv_heads x head_dim
    engines: frozenset[str] = frozenset()


@dataclass(frozen=True, slots=True, kw_only=True)
class Package:
    """What was uploaded, as far as it has to be in memory."""

    config: bytes
    weights_head: bytes  # the first bytes of the weights: length and header, or what there is
    weights_bytes: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Check:
    """One check as a person reads it."""

    name: str
    passed: bool
    said: str
    field: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Facts:
    """What an accepted adapter is."""

    rank: int
    alpha: float
    target_modules: tuple[str, ...]
    dtype: str
    base_name: str
    tensors: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Verdict:
    """Whether an adapter is taken in, with every check; `facts` only if it is."""

    checks: tuple[Check, ...]
    facts: Facts | None

    def raise_if_rejected(self) -> Facts:
        """Give the facts, or raise AdapterRejected by the first check that failed."""
        failed = next((check for check in self.checks if not check.passed), None)
        if failed is not None or self.facts is None:
            raise rejected(failed or self.checks[-1], self.checks)
        return self.facts


def rejected(failed: Check, checks: Sequence[Check] = ()) -> AdapterRejected:
    """Make the error that names a failed check and lists the others."""
    told = [
        {"check": c.name, "passed": c.passed, "said": c.said, "field": c.field}
        for c in checks or (failed,)
    ]
    return AdapterRejected(failed.said, field=failed.field or None, details={"checks": told})


def checked_name(name: Any) -> str:
    """Give an adapter's name if it is one.

    Raises:
        Invalid: with the rule; names become parts of addresses and of names at engines.
    """
    if not isinstance(name, str) or not _NAME.match(name):
        raise Invalid(f"{_shown(str(name))} is no adapter name. {NAME_RULE}", field="name")
    return name


def served_name(*, tenant: str, name: str, digest: str) -> str:
    """Give the name engines know a version by: no two tenants, names or contents share one."""
    return f"{tenant}.{name}.{digest[:SERVED_NAME_DIGITS]}"


def digest_of(files: Iterable[AdapterFile]) -> str:
    """Give the SHA-256 (hex) that names a package: over each file's name, size and SHA-256.

    One line `name size sha256` a file, in order of name, each ended by a line feed.
    """
    lines = sorted(f"{file.name} {file.size_bytes} {file.sha256}\n" for file in files)
    return hashlib.sha256("".join(lines).encode()).hexdigest()


def role_of_entry(name: str) -> str:
    """Say which of the two files an entry of an upload is; "" for one that is not needed.

    Entries may lie in folders, as archives of a folder have them.

    Raises:
        AdapterRejected: naming the entry, for one that could lead out of its folder or run code.
    """
    fault = _path_fault(name)
    if not fault and name.lower().endswith(_PICKLES):
        fault = (
            "may be a pickle, which runs code when it is loaded. Save the weights as "
            f"{WEIGHTS_FILE} (PEFT: safe_serialization=True) and leave other files out"
        )
    if fault:
        raise rejected(
            Check(name="Files", passed=False, said=f"{_shown(name)} {fault}.", field=_shown(name))
        )
    last = name.rsplit("/", 1)[-1]
    return last if last in ADAPTER_FILES else ""


def _path_fault(name: str) -> str:
    if any(ord(letter) < 32 or ord(letter) == 127 for letter in name):
        return "has control characters in its name"
    if "\\" in name or name.startswith("/") or _DRIVE.match(name):
        return "is no relative path with forward slashes"
    if not name or ".." in name.split("/"):
        return "leads out of its folder"
    return ""


def _shown(name: str) -> str:
    return repr(name if len(name) <= _SHOWN else f"{name[:_SHOWN]}…")


def check_adapter(package: Package, base: BaseModel) -> Verdict:
    """Check a whole package; what does not depend on a failed check is checked all the same."""
    checks: list[Check] = []
    config = _try(checks, "Configuration", lambda: adapter_configs.parsed(package.config))
    tensors = _try(
        checks,
        "Weights header",
        lambda: safetensors.tensors(package.weights_head, package.weights_bytes),
    )
    if config is None:
        return Verdict(checks=tuple(checks), facts=None)
    _try(checks, "Method", lambda: adapter_configs.check_method(config, base.kind))
    shape = _try(checks, "Rank", lambda: adapter_configs.shape_of(config, base.max_rank))
    _try(checks, "Base model", lambda: _check_base(config, base))
    if shape is None or tensors is None:
        return Verdict(checks=tuple(checks), facts=None)
    found = _try(checks, "Tensors", lambda: _check_tensors(tensors, shape, base))
    if found is None or not all(check.passed for check in checks):
        return Verdict(checks=tuple(checks), facts=None)
    return Verdict(checks=tuple(checks), facts=_facts(config, shape, tensors))


def _try(checks: list[Check], name: str, check: Callable[[], Any]) -> Any:
    """Make one check; its outcome is listed, and given unless it failed."""
    try:
        outcome = check()
    except Invalid as fault:
        checks.append(
            Check(name=name, passed=False, said=fault.message, field=str(fault.field or ""))
        )
        return None
    said = outcome if isinstance(outcome, str) else _SAID[name](outcome)
    checks.append(Check(name=name, passed=True, said=said))
    return outcome


_SAID: Final[Mapping[str, Callable[[Any], str]]] = {
    "Configuration": lambda config: f"{counted(len(config), 'settings')} read",
    "Weights header": lambda tensors: f"{counted(len(tensors), 'tensors')}, as long as they say",
    "Rank": lambda shape: f"{shape.rank} at most",
}


def _check_base(config: Mapping[str, Any], base: BaseModel) -> str:
    named = config.get("base_model_name_or_path")
    field = "base_model_name_or_path"
    if named is None or named == "":
        if base.pool:
            return f"not said by the configuration; pool {base.pool} was named"
        raise Invalid(
            f"{field} is empty, so the base model cannot be checked: name the pool it is for, too.",
            field=field,
        )
    if not isinstance(named, str):
        raise Invalid(f"{field} must be a text, not {named!r}.", field=field)
    if plain_model_name(named) not in {plain_model_name(name) for name in base.names}:
        raise Invalid(
            f"{field} is {named!r}, and model {base.model!r} is known as "
            f"{', '.join(sorted(set(base.names)))}. Upload it for the model it was trained on, or "
            "have an operator enter this name as an alias or as the source of a version.",
            field=field,
        )
    return f"{named} is {base.model}"


# What publishers add to a model's name when they store the same weights in fewer bits.
_STORED_AS: Final = re.compile(
    r"[-_.](?:unsloth|bnb|4bit|8bit|int4|int8|fp8|fp16|bf16|gptq|awq|gguf|w4a16|w8a8|dynamic)\Z"
)


def plain_model_name(name: str) -> str:
    """Give a model's name without its folder or organisation, its letter case and its storage."""
    plain = re.split(r"[/\\:]", name.strip().rstrip("/\\"))[-1].lower()
    while (shorter := _STORED_AS.sub("", plain)) != plain:
        plain = shorter
    return plain


def _check_tensors(
    tensors: Mapping[str, safetensors.Tensor], shape: adapter_configs.Shape, base: BaseModel
) -> str:
    modules = adapter_tensors.modules_of(tensors)
    adapter_tensors.check_shape(modules, shape)
    adapter_tensors.check_base(
        modules, layers=base.layers, kv_width=base.kv_width, engines=base.engines
    )
    return f"{counted(len(modules), 'modules')} with both matrices"


def _facts(
    config: Mapping[str, Any],
    shape: adapter_configs.Shape,
    tensors: Mapping[str, safetensors.Tensor],
) -> Facts:
    return Facts(
        rank=shape.rank,
        alpha=shape.alpha,
        target_modules=adapter_tensors.kinds_of(adapter_tensors.modules_of(tensors)),
        dtype=" ".join(sorted({tensor.dtype for tensor in tensors.values()})),
        base_name=config.get("base_model_name_or_path") or "",
        tensors=len(tensors),
    )
