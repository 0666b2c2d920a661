"""Streams of real engines, as captured, read under every kind of split."""

from __future__ import annotations

from pathlib import Path

import pytest

from routing_agent.proxy.stream import EventReader

CAPTURES = sorted((Path(__file__).parents[4] / "shared" / "engine_samples").glob("*/*.sse"))

pytestmark = [
    pytest.mark.shared,
    pytest.mark.skipif(not CAPTURES, reason="the sample data is not beside the checkout"),
]


@pytest.mark.parametrize("path", CAPTURES, ids=lambda p: f"{p.parent.name}/{p.stem}")
def test_a_real_stream_is_understood(path: Path) -> None:
    """R02, R03: every engine's own way of ending, and its usage where it tells."""
    blocks = [b.lstrip(b"\n") for b in path.read_bytes().split(b"\n\n") if b.strip()]
    stream = b"".join(b + b"\n\n" for b in blocks if not b.startswith(b"#"))
    for size in (1, 7, 1000, len(stream)):
        reader = EventReader(strip_usage=False)
        pieces = [stream[i : i + size] for i in range(0, len(stream), size)]
        assert b"".join(map(reader.feed, pieces)) + reader.end() == stream
        assert reader.has_token
        assert reader.is_complete
        assert (reader.usage is not None) == (b'"usage":{' in stream)
