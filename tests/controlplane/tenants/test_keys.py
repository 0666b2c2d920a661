"""Secrets are random, recognisable and stored only as a hash."""

from hypothesis import given
from hypothesis import strategies as st

from controlplane.tenants import keys


def test_a_key_holds_256_random_bits_behind_a_prefix_that_scanners_know():
    secret = keys.make()
    assert secret.text.startswith("sbx-")
    assert len(secret.text.removeprefix("sbx-")) == 43  # 32 bytes in URL-safe base64
    assert secret.text.startswith(secret.prefix)
    assert len(secret.prefix) == 10


def test_a_staff_token_cannot_be_taken_for_a_tenants_key():
    assert keys.make(keys.STAFF_TOKEN).text.startswith("sbt-")


def test_printing_a_secret_does_not_reveal_it():
    secret = keys.make()
    assert secret.text not in repr(secret)
    assert secret.sha256 not in repr(secret)


def test_two_keys_are_never_the_same():
    assert len({keys.make().text for _ in range(200)}) == 200


@given(st.text(), st.text())
def test_a_hash_matches_its_own_text_only(one: str, other: str):
    assert keys.matches(one, keys.digest(one))
    assert keys.matches(other, keys.digest(one)) == (one == other)
