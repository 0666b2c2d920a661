"""LoRA adapters of a simulated engine: a few slots on the GPU, a larger store in host memory.

As vLLM does it (`max_loras`, `max_cpu_loras`): the adapters of one batch all need a slot; one that
is in no slot is copied from host memory, or read from disk first, while the batch stands still;
what was used longest ago makes room. A request whose adapter finds every slot in use is deferred,
and others overtake it.
"""

from __future__ import annotations

from collections import Counter, OrderedDict


class AdapterSlots:
    """Which adapters are on the GPU and in host memory."""

    def __init__(self, slots: int, host_slots: int, *, copy_s: float, read_s: float) -> None:
        self._slots = slots
        self._host_slots = max(host_slots, slots)
        self._copy_s = copy_s
        self._read_s = read_s
        self._on_gpu: OrderedDict[str, None] = OrderedDict()  # longest unused first
        self._on_host: OrderedDict[str, None] = OrderedDict()
        self._in_use: Counter[str] = Counter()
        self.loads = 0  # copies to the GPU since the start

    @property
    def resident(self) -> tuple[str, ...]:
        """The adapters on the GPU, longest unused first."""
        return tuple(self._on_gpu)

    @property
    def running(self) -> tuple[str, ...]:
        """The adapters of sequences in the batch."""
        return tuple(sorted(self._in_use))

    def has_room(self, adapter: str) -> bool:
        """Say whether a sequence with this adapter may join the batch."""
        return not adapter or adapter in self._in_use or len(self._in_use) < self._slots

    def take(self, adapter: str) -> float:
        """Use an adapter that has room; give the seconds that loading it takes."""
        if not adapter:
            return 0.0
        self._in_use[adapter] += 1
        if adapter in self._on_gpu:
            self._on_gpu.move_to_end(adapter)
            return 0.0
        while len(self._on_gpu) >= self._slots:
            del self._on_gpu[next(name for name in self._on_gpu if name not in self._in_use)]
        self._on_gpu[adapter] = None
        self.loads += 1
        return self._copy_s + (0.0 if self.keep(adapter) else self._read_s)

    def give_back(self, adapter: str) -> None:
        """End one sequence's use; the adapter stays until another needs its slot."""
        if adapter:
            self._in_use[adapter] -= 1
            if not self._in_use[adapter]:
                del self._in_use[adapter]

    def keep(self, adapter: str) -> bool:
        """Have an adapter in host memory, as the newest; tell whether it was there already."""
        was_there = adapter in self._on_host
        self._on_host[adapter] = None
        self._on_host.move_to_end(adapter)
        while len(self._on_host) > self._host_slots:
            self._on_host.popitem(last=False)
        return was_there

    def clear_gpu(self) -> None:
        """Empty the slots (what sleeping does); nothing may be in use."""
        self._on_gpu.clear()
