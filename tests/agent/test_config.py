"""Options, configuration file and environment: what they come to, and what is refused in words."""

from __future__ import annotations

import hashlib
from pathlib import Path

import pytest

from routing_agent.config import POOL_OPTIONS, agent_config, serve_config
from routing_agent.gpu import SimulatedGpus
from routing_agent.option_values import ConfigError, client_keys, memory_bytes, simulated_gpus
from routing_agent.wire import PoolSettings

WORKERS = ["--worker-urls", "http://127.0.0.1:8001", "http://[::1]:8002/"]


def refused(capsys, *words):
    with pytest.raises(SystemExit) as stopped:
        serve_config([*WORKERS, *words])
    assert stopped.value.code == 2
    return capsys.readouterr().err


def test_the_defaults_are_the_products(capsys):
    config = serve_config(WORKERS)
    assert config.role.settings == PoolSettings()
    assert (config.host, config.port, config.admin_host, config.admin_port) == (
        *("127.0.0.1", 9000),
        *("127.0.0.1", 9001),
    )
    assert config.role.worker_urls == ("http://127.0.0.1:8001", "http://[::1]:8002")
    assert (config.role.client_keys, config.role.overload) == ((), "queue")


def test_every_option_sets_its_setting():
    words = {
        "--policy": "round_robin",
        "--ttft-timeout": "12.5",
        "--stall-timeout": "4",
        "--connect-timeout": "0.5",
        "--end-to-end-timeout": "90",
        "--max-retries": "1",
        "--retry-backoff": "0.2",
        "--retry-budget": "0.5",
        "--breaker-failures": "7",
        "--breaker-open": "20",
        "--probe-interval": "2",
        "--probe-timeout": "1",
        "--probe-failures": "4",
        "--probe-recoveries": "1",
        "--eject-ceiling": "0.3",
        "--queue-limit": "5",
        "--queue-deadline": "6",
        "--max-concurrency": "9",
        "--body-limit": "2048",
        "--profile-blocks": "500",
        "--profile-idle": "50",
        "--hit-dial": "2",
        "--load-dial": "1.5",
        "--session-margin": "0.2",
        "--bind-ahead": "2",
        "--kv-events": "tcp://{host}:{port+1000}",
        "--kv-replay": "ipc:///run/kv/{port}",
        "--session-lifetime": "60",
        "--slow-start": "0",
        "--drain-timeout": "30",
        "--broken-stream": "continue",
    }
    settings = serve_config([*WORKERS, *(w for pair in words.items() for w in pair)]).role.settings
    unchanged = PoolSettings()
    for option, name, _ in POOL_OPTIONS:
        assert getattr(settings, name) != getattr(unchanged, name), option
        assert str(getattr(settings, name)).removesuffix(".0") == words[option]


def test_the_drain_limit_is_one_and_the_same():
    assert serve_config([*WORKERS, "--drain-timeout", "30"]).drain_limit_s == 30


@pytest.mark.parametrize(
    ("words", "why"),
    [
        (["--workers", "0"], "--workers 0: between 1 and 64"),
        (["--kv-events", "http://a"], "--kv-events"),
        (["--overload-policy", "fallback"], "--overload-policy: this version cannot do it yet"),
        (["--policy", "best"], "this version knows round_robin"),
        (["--ttft-timeout", "0"], "--ttft-timeout"),
        (["--max-retries", "many"], "--max-retries"),
        (["--drain-timeout", "3600"], "--drain-timeout"),
        (["--alias", "nothing"], "expected NAME=MODEL"),
        (["--worker-urls", "http://::1:9001"], "in brackets"),
        (["--worker-urls", "http://a:1", "http://a:1/"], "names an engine twice"),
        (["--port", "9", "--admin-port", "9"], "must differ"),
        (["--client-key-file", "/no/such/file"], "--client-key-file"),
        (["--tls-cert-file", "/a"], "--tls-cert-file and --tls-key-file belong together"),
        (["--no-such-option"], "unrecognized arguments"),
        (["--api-key", "k"], "--api-key is here: --engine-key-file FILE"),
        (["--queue-timeout-secs=5"], "--queue-timeout-secs is here: --queue-deadline SECONDS"),
    ],
    ids=lambda words: " ".join(words) if isinstance(words, list) else "",
)
def test_what_cannot_be_obeyed_is_refused_with_the_option_and_the_reason(capsys, words, why):
    said = refused(capsys, *words)
    assert why in said
    assert "--help lists the options" in said


def test_a_file_says_the_same_as_options_and_the_command_line_wins(tmp_path):
    path = tmp_path / "agent.toml"
    path.write_text(
        'worker-urls = ["http://a:1", "http://b:1"]\n'
        "max_retries = 1\n"
        "ttft-timeout = 9.5\n"
        "[alias]\n"
        'gpt = "m"\n'
    )
    config = serve_config(["--config", str(path), "--max-retries", "0"])
    assert config.role.worker_urls == ("http://a:1", "http://b:1")
    assert (config.role.settings.max_retries, config.role.settings.ttft_limit_s) == (0, 9.5)
    assert config.role.aliases == {"gpt": "m"}


@pytest.mark.parametrize(
    ("content", "why"),
    [("max-retries = ", "cannot be read"), ("maximum-retries = 1", "--maximum-retries")],
    ids=["no-toml", "unknown-key"],
)
def test_a_bad_file_is_refused(tmp_path, capsys, content, why):
    path = tmp_path / "agent.toml"
    path.write_text(content)
    assert why in refused(capsys, "--config", str(path))
    assert "cannot be read" in refused(capsys, "--config", str(tmp_path / "missing"))


def test_switches_in_a_file(tmp_path):
    path = tmp_path / "agent.toml"
    path.write_text('control-plane = "http://c:8000"\nadopt = true\n')
    assert agent_config(["--config", str(path)]).role.adopt
    path.write_text('control-plane = "http://c:8000"\nadopt = false\n')
    assert not agent_config(["--config", str(path)]).role.adopt


def test_keys_are_kept_by_their_hash_and_engine_keys_out_of_sight(tmp_path):
    assert client_keys("# comment\n\nacme sk-1\nsk-2\n") == (
        *client_keys("acme sk-1"),
        *client_keys("sk-2"),
    )
    [key] = client_keys("acme sk-1")
    assert (key.tenant, key.sha256) == ("acme", hashlib.sha256(b"sk-1").hexdigest())
    assert client_keys("sk-2")[0].tenant == "local"
    secret = tmp_path / "engine-key"
    secret.write_text("engine-secret\n")
    config = serve_config([*WORKERS, "--engine-key-file", str(secret)])
    assert config.role.engine_key == "engine-secret"
    assert "engine-secret" not in repr(config)


@pytest.mark.parametrize("text", ["", "# nothing\n", "a b c\n"])
def test_a_key_file_without_readable_keys_does_not_mean_open_access(text):
    with pytest.raises(ConfigError, match="--client-key-file"):
        client_keys(text)


def test_no_key_file_means_open_access():
    assert client_keys(None) == ()


# -- under a control plane ---------------------------------------------------------------------

CONTROLLED = ["--control-plane", "http://c:8000/"]


def test_an_agents_options(tmp_path, monkeypatch):
    monkeypatch.delenv("SIGNALBOX_TOKEN", raising=False)
    token = tmp_path / "token"
    token.write_text("once\n")
    node = ["--name", "n", "--zone", "z", "--simulated-gpus", "4,H100,80GB"]
    reach = ["--adopt", "--advertise-host", "h", "--token-file", str(token)]
    config = agent_config([*CONTROLLED, *node, *reach])
    role = config.role
    assert (role.control_plane, role.name, role.zone, role.token) == (
        *("http://c:8000", "n"),
        *("z", "once"),
    )
    assert (role.adopt, role.advertise_host) == (True, "h")
    assert role.simulated_gpus == SimulatedGpus(4, "H100", 80 * 10**9)
    assert role.adapter_dir == (role.state_dir / "adapters").absolute()
    assert role.adapter_cache_bytes == 50 * 10**9
    assert "once" not in repr(config)


def test_adapters_may_be_kept_elsewhere_and_less_of_them():
    role = agent_config([*CONTROLLED, "--adapter-dir", "/srv/a", "--adapter-cache", "2GiB"]).role
    assert (str(role.adapter_dir), role.adapter_cache_bytes) == ("/srv/a", 2 * 2**30)


def test_a_cache_size_that_is_none_is_refused(capsys):
    with pytest.raises(SystemExit):
        agent_config([*CONTROLLED, "--adapter-cache", "much"])
    assert "expected a size, as 50GB" in capsys.readouterr().err


def test_the_token_may_come_from_the_environment_and_its_file_may_be_gone(tmp_path, monkeypatch):
    monkeypatch.setenv("SIGNALBOX_TOKEN", "from-env")
    gone = ["--token-file", str(tmp_path / "gone")]
    assert agent_config([*CONTROLLED, *gone]).role.token == "from-env"
    monkeypatch.delenv("SIGNALBOX_TOKEN")
    assert agent_config([*CONTROLLED, *gone]).role.token == ""


def test_an_agent_is_reached_where_it_listens_unless_told_otherwise(monkeypatch):
    monkeypatch.setattr("socket.gethostname", lambda: "node-7")
    assert agent_config([*CONTROLLED]).role.advertise_host == "127.0.0.1"
    assert agent_config([*CONTROLLED, "--host", "0.0.0.0"]).role.advertise_host == "node-7"
    assert agent_config([*CONTROLLED]).role.name == "node-7"
    assert agent_config([*CONTROLLED]).role.peer_port is None
    assert agent_config([*CONTROLLED, "--peer-port", "0"]).role.peer_port == 0
    with pytest.raises(SystemExit):
        agent_config([*CONTROLLED, "--peer-port", "70000"])
    assert agent_config([*CONTROLLED]).role.state_dir == Path("var/agent")


@pytest.mark.parametrize(
    ("text", "size"), [("80GB", 80 * 10**9), ("1.5GiB", 3 * 2**29), ("512MiB", 2**29), ("7", 7)]
)
def test_memory_is_read_in_the_usual_units(text, size):
    assert memory_bytes(text) == size


@pytest.mark.parametrize("text", ["4,H100", "x,H100,80GB", "4,H100,lots"])
def test_simulated_gpus_that_make_no_sense_are_refused(text):
    with pytest.raises(ConfigError, match="N,MODEL,MEMORY"):
        simulated_gpus(text)


class TestEngines:
    @staticmethod
    def rules(*words):
        config = agent_config(["--control-plane", "http://cp:8000", *words])
        return config.role.engines

    def test_without_ports_an_agent_starts_none(self):
        assert self.rules() is None

    def test_programs_ports_and_folders(self):
        programs = ("--engine-program", "vllm=/opt/vllm", "--engine-program", "simulated")
        rules = self.rules("--engine-ports", "8400-8419", *programs, "--engine-models", "/models")
        assert rules.programs["vllm"] == "/opt/vllm"
        assert rules.facts.programs == ("simulated", "vllm")
        assert (rules.facts.first_port, rules.facts.last_port) == (8400, 8419)
        assert (rules.host, rules.address) == ("127.0.0.1", "127.0.0.1")

    @pytest.mark.parametrize(
        ("words", "said"),
        [
            (("--engine-ports", "8400"), "expected FROM-TO"),
            (("--engine-ports", "9-8"), "expected FROM-TO"),
            (("--engine-program", "vllm"), "needs --engine-ports"),
            (("--engine-ports", "1-2", "--engine-program", "bash"), "known are vllm"),
        ],
    )
    def test_what_cannot_be_obeyed_is_refused(self, words, said, capsys):
        with pytest.raises(SystemExit):
            self.rules(*words)
        assert said in capsys.readouterr().err
