"""What the demo's chat pool promises: its traffic reads whole documents, on a laptop's engines."""

from __future__ import annotations

from typing import Final

from controlplane.fleet.models import Pool
from controlplane.reliability.models import Slo
from controlplane.reliability.services import set_slo
from controlplane.routing.first_start import ACTOR

POOL: Final = "chat"
# Of the sample traffic 8 % asks about documents of thousands of tokens: at the default of
# 300 ms the demo's first page would always show an alert.
TTFT_P99_S: Final = 2.0


def ensure_slo() -> None:
    """Promise it where nothing was promised yet; what an operator changed stays."""
    pool = Pool.objects.filter(slug=POOL).first()
    if pool is not None and not Slo.objects.filter(pool=pool).exists():
        set_slo(pool=POOL, ttft_p99_s=TTFT_P99_S, actor=ACTOR, reason="demo fleet")
