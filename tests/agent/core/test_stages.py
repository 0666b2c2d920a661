"""Stages lie end to end whatever moments were noted, and the share is the share."""

from __future__ import annotations

from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from routing_agent.core.sampling import is_in_share, threshold, why_kept
from routing_agent.core.stages import Life, Try, stages_of

moments = st.floats(0, 1000)


def tries() -> st.SearchStrategy[list[Try]]:
    return st.lists(
        st.builds(
            Try,
            replica=st.just("r0"),
            started_at=moments,
            connect_s=st.none() | st.floats(0, 10),
            was_sent=st.booleans(),
            first_token_at=st.none() | moments,
            ended_at=moments,
            route=st.just("load"),
            chosen_because=st.just(""),
            outcome=st.sampled_from(["good", "connect", "broken"]),
        ),
        max_size=4,
    )


@given(
    st.builds(
        Life,
        received_at=moments,
        queued_at=st.none() | moments,
        tries=tries(),
        ended_at=st.just(1000.0),
        status=st.sampled_from([200, 404, 499, 502]),
        error=st.just("e"),
    )
)
def test_stages_cover_a_life_without_a_gap_or_an_overlap(life):
    found = stages_of(life)
    assert found[0].stage == "RECEIVED"
    assert found[0].began_at == life.received_at
    for one, following in pairwise(found):
        assert one.began_at <= one.ended_at == following.began_at
    assert found[-1].began_at == found[-1].ended_at == life.ended_at
    assert found[-1].stage == ("DONE" if life.status < 400 else "FAILED")
    assert sum(stage.stage == "BOUND" for stage in found) == len(life.tries)


def test_all_agents_agree_on_the_share_and_it_is_the_share():
    ids = [b"5f0c9a%026x" % i for i in range(20_000)]
    kept = [i for i in ids if is_in_share(i, threshold(0.01))]
    assert kept == [i for i in ids if is_in_share(i, threshold(0.01))]
    assert 140 <= len(kept) <= 260  # 200 expected, four standard deviations either way
    assert set(kept) <= {i for i in ids if is_in_share(i, threshold(0.5))}


@pytest.mark.parametrize(("ratio", "expected"), [(0.0, False), (-1.0, False), (1.0, True)])
def test_none_and_all_are_exact(ratio, expected):
    assert {is_in_share(b"%d" % i, threshold(ratio)) for i in range(1000)} == {expected}


def test_a_failure_is_a_failure_even_if_it_is_traced():
    assert why_kept(500, traced=True) == "failure"
    assert why_kept(499, traced=True) == "traced"
    assert why_kept(429, traced=False) == "sampled"
