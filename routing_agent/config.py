"""Command line, configuration file and environment become one frozen Config, here and nowhere else.

A configuration file is TOML with the option names as keys: its lines are read as options that stand
before those of the command line, so the command line wins.
"""

from __future__ import annotations

import argparse
import os
import socket
import sys
import tomllib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal, NoReturn, get_args

import msgspec

from routing_agent import engine_options
from routing_agent.engine.programs import EngineRules
from routing_agent.gpu import SimulatedGpus
from routing_agent.option_values import (
    TOKEN_VARIABLE,
    ClientKey,
    ConfigError,
    alias,
    base_url,
    client_keys,
    file_words,
    port_number,
    reachable,
    simulated_gpus,
    size_bytes,
    text_of,
    token,
)
from routing_agent.other_routers import hints
from routing_agent.otlp import Collector, collector_of
from routing_agent.wire import (
    SAMPLE_RATIO,
    EngineName,
    OverloadPolicy,
    PolicyName,
    PoolSettings,
)

DEFAULTS = PoolSettings()
MOST_WORKERS = 64
ADAPTER_CACHE = "50GB"  # 25 adapters of the largest size that may be uploaded

# Option, field of PoolSettings, unit. The help text of each tells its default.
POOL_OPTIONS: tuple[tuple[str, str, str], ...] = (
    ("--policy", "policy", "NAME"),
    ("--ttft-timeout", "ttft_limit_s", "SECONDS"),
    ("--stall-timeout", "stall_limit_s", "SECONDS"),
    ("--connect-timeout", "connect_limit_s", "SECONDS"),
    ("--end-to-end-timeout", "end_to_end_limit_s", "SECONDS"),
    ("--max-retries", "max_retries", "N"),
    ("--retry-backoff", "retry_backoff_s", "SECONDS"),
    ("--retry-budget", "retry_budget_ratio", "RATIO"),
    ("--breaker-failures", "breaker_failures", "N"),
    ("--breaker-open", "breaker_open_s", "SECONDS"),
    ("--probe-interval", "probe_interval_s", "SECONDS"),
    ("--probe-timeout", "probe_timeout_s", "SECONDS"),
    ("--probe-failures", "probe_failures", "N"),
    ("--probe-recoveries", "probe_recoveries", "N"),
    ("--eject-ceiling", "eject_ceiling_ratio", "RATIO"),
    ("--queue-limit", "queue_limit_per_replica", "N"),
    ("--queue-deadline", "queue_deadline_s", "SECONDS"),
    ("--max-concurrency", "max_concurrency_per_replica", "N"),
    ("--body-limit", "body_limit_bytes", "BYTES"),
    ("--profile-blocks", "profile_blocks", "N"),
    ("--profile-idle", "profile_idle_s", "SECONDS"),
    ("--hit-dial", "hit_dial", "X"),
    ("--load-dial", "load_dial", "X"),
    ("--session-margin", "session_margin_s", "SECONDS"),
    ("--bind-ahead", "bind_ahead_s", "SECONDS"),
    ("--kv-events", "kv_events", "ADDRESS"),
    ("--kv-replay", "kv_replay", "ADDRESS"),
    ("--session-lifetime", "session_lifetime_s", "SECONDS"),
    ("--slow-start", "slow_start_s", "SECONDS"),
    ("--drain-timeout", "drain_limit_s", "SECONDS"),
    ("--broken-stream", "broken_stream", "continue|end"),
)

# What later versions will do. Accepting the option and doing nothing would be a lie.
NOT_YET: Mapping[str, str] = {
    "--overload-policy": "falling back to another pool without a control plane",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Standalone:
    """`serve`: the engines to find out about, and what to do with them."""

    worker_urls: tuple[str, ...]
    settings: PoolSettings
    overload: OverloadPolicy
    engine: EngineName | None  # None: recognised by its answers
    aliases: Mapping[str, str]  # alias -> model
    client_keys: tuple[ClientKey, ...]  # empty: open access
    engine_key: str = field(repr=False, default="")


@dataclass(frozen=True, slots=True, kw_only=True)
class Managed:
    """`agent`: which control plane, and as what."""

    control_plane: str
    name: str
    state_dir: Path
    advertise_host: str
    peer_port: int | None  # UDP; None: the admin port's number, 0: none
    zone: str
    adopt: bool
    simulated_gpus: SimulatedGpus | None
    adapter_dir: Path  # where engines of this node read adapters; absolute
    adapter_cache_bytes: int
    ca_file: Path | None
    client_cert: Path | None
    client_key: Path | None
    token: str = field(repr=False, default="")
    engines: EngineRules | None = None  # None: starts none


@dataclass(frozen=True, slots=True, kw_only=True)
class Config:
    """Everything that options and environment say."""

    host: str
    port: int
    certificate: tuple[Path, Path] | None  # of the traffic port, and its key; None: plain HTTP
    engine_ca_file: Path | None  # None: whom the system trusts
    admin_host: str
    admin_port: int
    drain_limit_s: float
    log_level: Literal["debug", "info", "warning", "error"]
    role: Standalone | Managed
    workers: int = 1
    sample_ratio: float = SAMPLE_RATIO
    collector: Collector | None = None

    @property
    def place(self) -> tuple[str, str]:
        """Node and zone of this agent, as far as it was told."""
        role = self.role
        return (role.name, role.zone) if isinstance(role, Managed) else ("", "")


class Parser(argparse.ArgumentParser):
    """Reads `--config FILE` first, then the command line over it."""

    def parse_args(self, args: Any = None, namespace: Any = None) -> Any:
        words = list(sys.argv[1:] if args is None else args)
        return super().parse_args([*self._words_of_file(words), *words], namespace)

    def error(self, message: str) -> NoReturn:
        """Say what is wrong and stop; the list of all options would only hide it."""
        lines = [f"{self.prog}: {message}", *hints(message.split())]
        self.exit(2, "\n".join([*lines, f"{self.prog} --help lists the options.\n"]))

    def _words_of_file(self, words: Sequence[str]) -> list[str]:
        only_config = argparse.ArgumentParser(add_help=False, allow_abbrev=False)
        only_config.add_argument("--config", type=Path)
        path = only_config.parse_known_args(words)[0].config
        if path is None:
            return []
        try:
            return file_words(tomllib.loads(path.read_text()))
        except (OSError, UnicodeDecodeError, tomllib.TOMLDecodeError) as error:
            self.error(f"--config {path} cannot be read: {error}")


def serve_config(words: Sequence[str]) -> Config:
    """Read the options of `serve`."""
    parser = Parser(
        prog="python -m routing_agent serve", allow_abbrev=False, description=SERVE_TEXT
    )
    _add_listening(parser, admin_host=None)
    parser.add_argument("--worker-urls", nargs="+", metavar="URL", required=True)
    parser.add_argument("--engine", choices=get_args(EngineName), help="default: recognised")
    parser.add_argument("--client-key-file", type=Path, help="lines of KEY or TENANT KEY")
    parser.add_argument("--engine-key-file", type=Path, help="the engines' own API key")
    parser.add_argument("--overload-policy", choices=get_args(OverloadPolicy), default="queue")
    parser.add_argument("--alias", action="append", default=[], metavar="NAME=MODEL")
    for option, name, unit in POOL_OPTIONS:
        default = getattr(DEFAULTS, name)
        parser.add_argument(option, metavar=unit, help=f"default: {default}")
    return _read(parser, words, _serve_from)


def agent_config(words: Sequence[str]) -> Config:
    """Read the options of `agent`."""
    parser = Parser(
        prog="python -m routing_agent agent", allow_abbrev=False, description=AGENT_TEXT
    )
    _add_listening(parser, admin_host="127.0.0.1")
    parser.add_argument("--control-plane", required=True, metavar="URL")
    parser.add_argument("--token-file", type=Path, help=f"one-time token; or {TOKEN_VARIABLE}")
    parser.add_argument("--name", default=socket.gethostname(), help="of this node")
    parser.add_argument("--state-dir", type=Path, default=Path("var/agent"))
    parser.add_argument("--advertise-host", help="how others reach this agent; default: --host")
    parser.add_argument(
        "--peer-port", type=int, help="UDP, for other agents; default: as --admin-port; 0: none"
    )
    parser.add_argument("--zone", default="")
    parser.add_argument("--adopt", action="store_true", help="register again with the new token")
    parser.add_argument("--simulated-gpus", metavar="N,MODEL,MEMORY", help="4,H100,80GB")
    parser.add_argument(
        "--adapter-dir", type=Path, help="where engines read adapters; default: in --state-dir"
    )
    parser.add_argument(
        "--adapter-cache", default=ADAPTER_CACHE, metavar="SIZE", help=f"default: {ADAPTER_CACHE}"
    )
    parser.add_argument("--ca-file", type=Path, help="whom to trust for an https control plane")
    parser.add_argument("--client-cert", type=Path)
    parser.add_argument("--client-key", type=Path)
    parser.add_argument(
        "--drain-timeout", type=float, default=DEFAULTS.drain_limit_s, metavar="SECONDS"
    )
    engine_options.add_arguments(parser)
    return _read(parser, words, _agent_from)


SERVE_TEXT = "Route OpenAI traffic over some engines, without a control plane."
AGENT_TEXT = "Route OpenAI traffic as a control plane says."


def _add_listening(parser: argparse.ArgumentParser, *, admin_host: str | None) -> None:
    parser.add_argument("--config", type=Path, metavar="FILE", help="TOML, option names as keys")
    parser.add_argument("--host", default="127.0.0.1", help="of the traffic port")
    parser.add_argument("--port", type=int, default=9000)
    parser.add_argument(
        "--tls-cert-file", type=Path, help="certificate (chain) of the traffic port"
    )
    parser.add_argument(
        "--tls-key-file", type=Path, help="its private key; both: clients use https"
    )
    parser.add_argument("--engine-ca-file", type=Path, help="whom to trust for https engines")
    parser.add_argument(
        "--workers",
        type=int,
        default=1,
        metavar="N",
        help="processes that carry requests, about one a core; default: 1",
    )
    parser.add_argument("--admin-host", default=admin_host, help="default: 127.0.0.1")
    parser.add_argument("--admin-port", type=int, default=9001)
    parser.add_argument(
        "--log-level", choices=("debug", "info", "warning", "error"), default="info"
    )
    _add_records(parser)


def _add_records(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--sample-ratio",
        type=float,
        default=SAMPLE_RATIO,
        metavar="RATIO",
        help=f"of requests whose lives are kept beside all failures; default: {SAMPLE_RATIO}",
    )
    parser.add_argument(
        "--otlp-endpoint",
        metavar="URL",
        help="OpenTelemetry collector (OTLP over HTTP); or OTEL_EXPORTER_OTLP_ENDPOINT",
    )


def _read(parser: Parser, words: Sequence[str], build: Any) -> Config:
    options = parser.parse_args(words)
    try:
        config: Config = build(options)
    except ConfigError as error:
        parser.error(str(error))
    return config


def _serve_from(options: argparse.Namespace) -> Config:
    if options.overload_policy == "fallback":
        raise not_yet("--overload-policy")
    settings = pool_settings(vars(options))
    role = Standalone(
        worker_urls=tuple(base_url("--worker-urls", url) for url in options.worker_urls),
        settings=settings,
        overload=options.overload_policy,
        engine=options.engine,
        aliases=dict(alias(text) for text in options.alias),
        client_keys=client_keys(text_of("--client-key-file", options.client_key_file)),
        engine_key=(text_of("--engine-key-file", options.engine_key_file) or "").strip(),
    )
    if len(set(role.worker_urls)) != len(role.worker_urls):
        raise ConfigError("--worker-urls names an engine twice")
    return _config(options, role, settings.drain_limit_s)


def _agent_from(options: argparse.Namespace) -> Config:
    role = Managed(
        control_plane=base_url("--control-plane", options.control_plane),
        name=options.name,
        state_dir=options.state_dir,
        advertise_host=options.advertise_host or reachable(options.host),
        peer_port=port_number("--peer-port", options.peer_port),
        zone=options.zone,
        adopt=options.adopt,
        simulated_gpus=simulated_gpus(options.simulated_gpus),
        adapter_dir=(options.adapter_dir or options.state_dir / "adapters").absolute(),
        adapter_cache_bytes=size_bytes("--adapter-cache", options.adapter_cache),
        ca_file=options.ca_file,
        client_cert=options.client_cert,
        client_key=options.client_key,
        token=token(options.token_file),
        engines=_engines(options),
    )
    return _config(options, role, options.drain_timeout)


def _config(
    options: argparse.Namespace, role: Standalone | Managed, drain_limit_s: float
) -> Config:
    if options.port == options.admin_port != 0:
        raise ConfigError("--port and --admin-port must differ")
    return Config(
        host=options.host,
        port=options.port,
        certificate=_certificate(options.tls_cert_file, options.tls_key_file),
        engine_ca_file=options.engine_ca_file,
        admin_host=options.admin_host or "127.0.0.1",
        admin_port=options.admin_port,
        drain_limit_s=drain_limit_s,
        log_level=options.log_level,
        role=role,
        workers=_workers(options.workers),
        sample_ratio=_ratio("--sample-ratio", options.sample_ratio),
        collector=_collector(options.otlp_endpoint),
    )


def _engines(options: argparse.Namespace) -> EngineRules | None:
    host = options.engine_host or options.host
    try:
        return engine_options.rules(
            options, host=host, address=options.advertise_host or reachable(host)
        )
    except ValueError as error:
        raise ConfigError(str(error)) from None


def _workers(count: int) -> int:
    if not 1 <= count <= MOST_WORKERS:
        raise ConfigError(f"--workers {count}: between 1 and {MOST_WORKERS}, about one a core")
    return count


def _ratio(option: str, value: float) -> float:
    if not 0 <= value <= 1:
        raise ConfigError(f"{option} {value:g}: a ratio is between 0 and 1")
    return value


def _collector(option: str | None) -> Collector | None:
    try:
        return collector_of(option, os.environ)
    except ValueError as error:
        raise ConfigError(f"--otlp-endpoint or its variable: {error}") from None


def _certificate(cert: Path | None, key: Path | None) -> tuple[Path, Path] | None:
    if (cert is None) != (key is None):
        raise ConfigError("--tls-cert-file and --tls-key-file belong together: give both or none")
    return None if cert is None or key is None else (cert, key)


def not_yet(option: str) -> ConfigError:
    """Refuse an option whose feature this version lacks."""
    return ConfigError(f"{option}: this version cannot do it yet ({NOT_YET[option]})")


def pool_settings(values: Mapping[str, Any]) -> PoolSettings:
    """Turn the pool options that were given into settings, with the product's bounds."""
    given = {}
    for option, name, _ in POOL_OPTIONS:
        value = values.get(option.removeprefix("--").replace("-", "_"))
        if value is not None:
            given[name] = value
    if given.get("policy") not in (None, *get_args(PolicyName)):
        names = " ".join(get_args(PolicyName))
        raise ConfigError(f"--policy {given['policy']}: this version knows {names}")
    try:
        return msgspec.convert(given, PoolSettings, strict=False)
    except msgspec.ValidationError as error:
        reason, _, path = str(error).partition(" - at `$.")
        options = {name: option for option, name, _ in POOL_OPTIONS}
        raise ConfigError(f"{options.get(path.rstrip('`'), path)}: {reason}") from None
