"""Usage records add up to what was served, by hour and key."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

import pytest
from hypothesis import given
from hypothesis import strategies as st

from controlplane.domain.usage import adapter_uses, last_uses, roll_up
from routing_agent.wire import UsageRecord

NOW = datetime(2026, 1, 1, 12, 30, tzinfo=UTC)
HOUR = NOW.replace(minute=0)


def record(number=1, **given_values):
    defaults = {"at": NOW.timestamp(), "request_id": "r", "tenant": "acme"}
    return UsageRecord(number=number, **(defaults | given_values))


def test_records_of_one_hour_and_key_become_one_sum():
    (entry,) = roll_up(
        [
            record(prompt_tokens=10, cached_prompt_tokens=4, output_tokens=2),
            record(prompt_tokens=5, status=502, estimated=True),
        ],
        now=NOW,
    ).items()
    key, sums = entry
    assert (key.hour, key.tenant) == (HOUR, "acme")
    assert (sums.requests, sums.failed, sums.estimated) == (2, 1, 1)
    assert (sums.prompt_tokens, sums.cached_prompt_tokens, sums.output_tokens) == (15, 4, 2)


def test_an_adapter_and_its_base_model_are_counted_apart():
    records = [record(adapter="acme.sql.0123456789ab", output_tokens=3), record(output_tokens=4)]
    rolled = roll_up(records, now=NOW)
    assert {k.adapter: s.output_tokens for k, s in rolled.items()} == {
        "": 4,
        "acme.sql.0123456789ab": 3,
    }


@pytest.mark.parametrize("at", [0.0, 1e300, float("nan"), -1e18, 4e9])
def test_a_moment_that_cannot_be_counts_as_now(at):
    assert [key.hour for key in roll_up([record(at=at)], now=NOW)] == [HOUR]


@given(st.lists(st.builds(record, tenant=st.sampled_from("ab"), output_tokens=st.integers(0, 9))))
def test_nothing_is_lost_and_keys_come_in_order(records):
    rolled = roll_up(records, now=NOW)
    assert sum(sums.requests for sums in rolled.values()) == len(records)
    assert sum(s.output_tokens for s in rolled.values()) == sum(r.output_tokens for r in records)
    assert list(rolled) == sorted(rolled)


def test_an_adapters_last_use_is_its_newest_request_and_never_later_than_now():
    def used(seconds, **values):
        return record(at=NOW.timestamp() + seconds, **values)

    records = [used(-9, adapter="a"), used(-5, adapter="a", status=503), used(-7, adapter="a"),
               used(60, adapter="b"), used(0)]  # fmt: skip
    assert adapter_uses(records, now=NOW) == {"a": NOW - timedelta(seconds=5), "b": NOW}


def test_a_keys_last_use_is_the_newest_and_never_in_the_future():
    late = (NOW - timedelta(minutes=3)).timestamp()
    records = [
        record(api_key="k1", at=late - 60),
        record(api_key="k1", at=late),
        record(api_key="k2", at=(NOW + timedelta(hours=1)).timestamp()),
        record(api_key="k3", at=1e30),
        record(api_key=""),
    ]
    uses = last_uses(records, now=NOW)
    assert uses == {"k1": datetime.fromtimestamp(late, UTC), "k2": NOW, "k3": NOW}
