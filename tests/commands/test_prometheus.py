"""`bin/up` with a Prometheus on PATH: found, configured, started, watched."""

from __future__ import annotations

import json
import sys
import urllib.request
from pathlib import Path

import pytest
import yaml
from stack import processes, prometheus, services, up
from stack.layout import Ports

from tests.commands.conftest import SmallStack, free_port

# What its documentation promises of the binary: these flags, and an answer once it is ready.
STAND_IN = f"""#!{sys.executable}
import argparse, http.server, json, os, pathlib
options = argparse.ArgumentParser(allow_abbrev=False)
for flag in ("config.file", "storage.tsdb.path", "storage.tsdb.retention.time",
             "web.listen-address"):
    options.add_argument("--" + flag, dest=flag, required=True)
given = vars(options.parse_args())
pathlib.Path(given["storage.tsdb.path"]).mkdir(parents=True, exist_ok=True)
told = json.dumps({{"given": given, "config": pathlib.Path(given["config.file"]).read_text(),
                    "environment": sorted(os.environ)}})
class Handler(http.server.BaseHTTPRequestHandler):
    def do_GET(self):
        body = (told if self.path == "/told" else "Prometheus Server is Ready.").encode()
        self.send_response(200 if self.path in ("/-/ready", "/told") else 404)
        self.send_header("content-length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)
    def log_message(self, *words): pass
host, _, port = given["web.listen-address"].rpartition(":")
http.server.ThreadingHTTPServer((host, int(port)), Handler).serve_forever()
"""


@pytest.fixture
def on_path(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    binary = tmp_path / "bin" / "prometheus"
    binary.parent.mkdir()
    binary.write_text(STAND_IN)
    binary.chmod(0o755)
    monkeypatch.setenv("PATH", str(binary.parent), prepend=":")
    monkeypatch.delenv("PROMETHEUS_URL", raising=False)
    monkeypatch.setenv("REDIS_URL", "redis://127.0.0.1:1/0")
    return binary


def some_ports() -> Ports:
    """Ports of which Prometheus's own is free."""
    return Ports(free_port() - Ports(0).prometheus)


def test_a_binary_on_path_is_started_with_its_configuration_and_watched(
    small_stack: SmallStack, on_path: Path
):
    here = small_stack.here
    plan = up.make_plan(here, up.Options(), some_ports())
    assert (plan.prometheus, plan.prometheus_url) == (on_path, prometheus.url(plan.ports))
    prometheus.configure(here, plan)
    (service,) = [s for s in services.services(plan, here) if s.name == "prometheus"]
    small_stack.services.append(service)
    small_stack.start()

    def told() -> dict | None:
        try:
            with urllib.request.urlopen(f"{service.url}/told", timeout=5) as answer:
                return dict(json.load(answer))
        except OSError:
            return None

    assert processes.wait_until(told, limit_s=20)
    found = told()
    assert found["given"]["web.listen-address"] == f"127.0.0.1:{plan.ports.prometheus}"
    assert Path(found["given"]["storage.tsdb.path"]).is_relative_to(here.var)
    jobs = {job["job_name"]: job for job in yaml.safe_load(found["config"])["scrape_configs"]}
    targets = {name: job["static_configs"][0]["targets"] for name, job in jobs.items()}
    assert targets["signalbox-agents"] == [f"127.0.0.1:{plan.ports.admin(n)}" for n in (1, 2)]
    assert targets["engines"] == [f"127.0.0.1:{plan.ports.engine(n)}" for n in (1, 2, 3, 4)]
    assert targets["control-plane"] == [f"127.0.0.1:{plan.ports.web}"]
    assert not {"DATABASE_URL", "REDIS_URL"} & set(found["environment"])
    assert service.probe.target == f"{service.url}/-/ready"


def test_the_control_plane_is_told_where_it_is(here, on_path):
    plan = up.make_plan(here, up.Options(), some_ports())
    told = services.control_plane_environment(plan, here)
    assert told["PROMETHEUS_URL"] == plan.prometheus_url


def test_a_real_one_goes_before_the_binary(here, on_path, monkeypatch):
    monkeypatch.setenv("PROMETHEUS_URL", "http://prometheus.example:9090")
    plan = up.make_plan(here, up.Options(), some_ports())
    assert (plan.prometheus, plan.prometheus_url) == (None, "http://prometheus.example:9090")


def test_without_either_there_is_none(here, monkeypatch, tmp_path):
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.delenv("PROMETHEUS_URL", raising=False)
    monkeypatch.setenv("REDIS_URL", "redis://127.0.0.1:1/0")
    plan = up.make_plan(here, up.Options(), some_ports())
    assert (plan.prometheus, plan.prometheus_url) == (None, "")
    assert "prometheus" not in {s.name for s in services.services(plan, here)}
