"""Chains of block hashes: equal exactly as far as prompts, and what keeps caches apart, are."""

from __future__ import annotations

from hypothesis import given, settings
from hypothesis import strategies as st

from routing_agent.core.prefix import MAX_BLOCKS, beginning, chain, chain_root

BLOCK = 16
PROMPTS = st.binary(max_size=200)
WORDS = st.text(max_size=5)
SALTS = st.binary(max_size=5).filter(lambda salt: b"\x00" not in salt)


@settings(max_examples=30)
@given(PROMPTS, PROMPTS, PROMPTS)
def test_two_chains_agree_exactly_as_far_as_their_prompts(
    shared: bytes, one: bytes, other: bytes
) -> None:
    root = chain_root(7, "v1")
    first, second = chain(shared + one, root, BLOCK), chain(shared + other, root, BLOCK)
    a, b = shared + one, shared + other
    alike = next(
        (i for i, (x, y) in enumerate(zip(a, b, strict=False)) if x != y), min(len(a), len(b))
    )
    assert len(first) == len(a) // BLOCK
    same = alike // BLOCK
    assert first[:same] == second[:same]
    assert not set(first[same:]) & set(second[same:])


@settings(max_examples=30)
@given(
    st.binary(min_size=3 * BLOCK, max_size=120),
    st.lists(
        st.tuples(WORDS, WORDS, SALTS, st.integers(0, 3)), min_size=2, max_size=4, unique=True
    ).map(lambda found: [f for f in found if "\x00" not in f[0] + f[1]]),
)
def test_version_adapter_salt_and_seed_each_keep_prompts_apart(
    prompt: bytes, roots: list[tuple[str, str, bytes, int]]
) -> None:
    """R32: nothing an engine computed for one serves another."""
    seen: set[int] = set()
    for version, adapter, salt, seed in roots:
        blocks = chain(prompt, chain_root(seed, version, adapter, salt), BLOCK)
        assert not seen & set(blocks)
        seen |= set(blocks)


def test_a_chain_is_bounded_whatever_the_prompt() -> None:
    assert len(chain(b"x" * (MAX_BLOCKS + 5), 1, 1)) == MAX_BLOCKS
    assert chain(b"short", 1, 256) == []


def test_a_session_is_known_by_all_up_to_its_first_user() -> None:
    talk = [("system", "rules"), ("user", "hello"), ("assistant", "hi"), ("user", "more")]
    assert beginning(talk) == b"rules\x00hello"
    assert beginning(talk[:1]) == b"rules"
    assert beginning([]) == b""
