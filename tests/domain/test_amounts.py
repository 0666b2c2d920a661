"""Amounts read as people write them."""

from __future__ import annotations

import pytest

from controlplane.domain import amounts, slos


@pytest.mark.parametrize(
    ("ratio", "said"),
    [(0.63, "63 %"), (0.0042, "0.42 %"), (0.999, "99.9 %"), (1.234, "123 %"), (0.0, "0 %")],
)
def test_a_share_has_three_digits(ratio, said):
    assert amounts.percent(ratio) == said


@pytest.mark.parametrize(
    ("ratio", "said"), [(0.99999, "99.999 %"), (0.9999999, "99.999 %"), (0.9978, "99.78 %")]
)
def test_an_availability_is_never_rounded_up_to_all(ratio, said):
    assert slos._nines(ratio) == said
