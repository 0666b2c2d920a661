"""What an engine says of its own KV cache, in terms of our blocks.

Engines publish which of their blocks they store and drop, by token ids that an agent does not have.
The two are brought together by what can be observed: the blocks that an engine stored between our
sending a prompt and its first token, whose count is the prompt's own, are that prompt's. From then
on the *content* of these blocks (a hash of their tokens and all before them, of our own making, so
that it is the same on every replica and after a restart) stands for blocks of ours, wherever and by
whomever it is stored again. Where two prompts of the same length overlap nobody can tell, and
nothing is learned. What stays unknown stays the guess that it was.
"""

from __future__ import annotations

from array import array
from collections import OrderedDict, deque
from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import Final

import msgspec
import xxhash

from routing_agent.core.profile import DEFAULT_CAPACITY_TOKENS, PrefixProfile

# Of whole prompts: 100,000 blocks of 16 tokens, about 20 MB in all.
MOST_CONTENTS: Final = 100_000
# Ends of what was stored lately, among which the prompts of ended requests are looked for.
MOST_LATEST: Final = 4_096
MOST_ENDED: Final = 1_024
# The blocks of a prompt and its first token come of one step of the engine, by two ways. One is
# clearly nearer than another if that is so many times as far, and a step more.
CLEARLY: Final = 4.0
LEAST_STEP_S: Final = 0.01
# Of what the engine dropped lately so much is still known by its content: a cache that is short of
# room drops prompts before their answers are over.
MOST_GONE: Final = 4_096
# Events take another way than answers, and may come after them.
LATE_S: Final = 1.0
# SGLang's pages have one token unless told otherwise: to follow each would cost more than it finds.
LEAST_BLOCK_TOKENS: Final = 8


class Stored(msgspec.Struct):
    """The engine stored blocks that follow on each other, and on `parent` (None: at the start)."""

    hashes: list[int]
    parent: int | None
    tokens: array[int]  # of all blocks
    block_tokens: int
    extras: list[bytes]  # for each block what else its content depends on: adapter, salt, images


class Removed(msgspec.Struct):
    """The engine dropped blocks."""

    hashes: list[int]


class Cleared(msgspec.Struct):
    """The engine dropped everything."""


Event = Stored | Removed | Cleared


class Ended(msgspec.Struct):
    """A request of ours that is over: what it asked, and when its prompt was computed."""

    blocks: Sequence[int]  # ours
    prompt_bytes: int  # of the canonical prompt
    prompt_tokens: int  # as the engine counted them
    cached_tokens: int | None  # of those, what it had already; None: it does not tell
    sent_at: float
    first_token_at: float


class KvContents:
    """Which of our blocks end in a block of an engine, by its content; one for a pool."""

    __slots__ = ("_known", "views")

    def __init__(self) -> None:
        self._known: OrderedDict[int, tuple[int, ...]] = OrderedDict()
        self.views: list[KvView] = []

    def __len__(self) -> int:
        return len(self._known)

    def get(self, content: int) -> tuple[int, ...] | None:
        """Give the blocks of ours that end in a content; None if it is not known."""
        return self._known.get(content)

    def learn(self, contents: Sequence[int], found: Sequence[tuple[int, ...]], now: float) -> None:
        """Note what one prompt's contents stand for, and tell who holds them if that is news."""
        known = self._known
        has_news = any(content not in known for content in contents)
        for content, blocks in zip(contents, found, strict=True):
            known[content] = blocks
            known.move_to_end(content)
        while len(known) > MOST_CONTENTS:
            known.popitem(last=False)
        if has_news:
            for view in self.views:
                view.note_known(contents, now)


class _Piece(msgspec.Struct, gc=False):
    """What one event stored: blocks of a prompt from one depth to another, the last by its hash."""

    at: float
    first: int
    depth: int
    last: int


class _Block(msgspec.Struct, gc=False):
    content: int
    depth: int  # how many blocks a prompt has up to here
    parent: int | None
    copies: int = 0  # requests that begin alike at one time each store their own


_NONE_GONE: Final[Mapping[int, _Block]] = MappingProxyType({})


class KvView:
    """One replica's cache by its own events. Times are monotonic seconds.

    Takes about 20 MB for each million tokens of the replica's KV cache, in blocks of 16.
    """

    __slots__ = ("_contents", "_copies", "_ended", "_gone", "_held", "_held_contents", "_latest",
                 "_profile", "block_bytes", "block_tokens", "counts", "most_tokens")  # fmt: skip

    def __init__(self, profile: PrefixProfile, contents: KvContents, *, block_bytes: int) -> None:
        self._profile = profile
        self._contents = contents
        self.block_bytes = block_bytes  # of our blocks
        self.block_tokens = 0  # of the engine's; 0 = none seen yet
        self.most_tokens: int | None = None  # that its KV cache has room for; None: not known
        self._held: dict[int, _Block] = {}  # by the engine's hash
        self._held_contents: dict[int, int] = {}  # the engine's hash by content
        self._copies = 0  # of all blocks
        self._gone: OrderedDict[int, _Block] = OrderedDict()  # the longest gone first
        self._latest: deque[_Piece] = deque(maxlen=MOST_LATEST)
        self._ended: deque[tuple[float, Ended]] = deque(maxlen=MOST_ENDED)
        # For operators: blocks stored, removed, without a known beginning; prompts found or not.
        self.counts = dict.fromkeys(
            ("stored", "removed", "orphans", "found", "unclear", "unseen", "cleared"), 0
        )
        contents.views.append(self)

    @property
    def held_tokens(self) -> int:
        """How many tokens the engine said it stored and has not dropped."""
        return len(self._held) * self.block_tokens

    @property
    def is_followed(self) -> bool:
        """Whether single blocks are followed: not where they are as small as a token or two."""
        return self.block_tokens == 0 or self.block_tokens >= LEAST_BLOCK_TOKENS

    def apply(self, event: Event, now: float) -> None:
        """Take over one event."""
        if isinstance(event, Cleared):
            self.counts["cleared"] += 1
            self.forget()
            self._profile.clear()
        elif isinstance(event, Removed):
            for block in event.hashes:
                self._remove(block)
        else:
            self._store(event, now)

    def note_ended(self, ended: Ended) -> None:
        """Note a request of ours whose answer is over; `settle` looks for its blocks."""
        computed = ended.prompt_tokens - (ended.cached_tokens or 0)
        if ended.blocks and computed > self.block_tokens and self.is_followed:
            self._ended.append((ended.first_token_at + LATE_S, ended))

    def settle(self, now: float) -> None:
        """Look for the blocks of requests that ended, once all events on them must have come."""
        while self._ended and self._ended[0][0] <= now:
            self._attribute(self._ended.popleft()[1], now)

    def note_known(self, contents: Sequence[int], now: float) -> None:
        """Take over that it is known what a prompt's contents stand for, as far as held here."""
        for content in reversed(contents):
            block = self._held_contents.get(content)
            if block is not None:
                self._believe(block, now)
                return

    def forget(self) -> None:
        """Forget what the engine said: it restarted, or events were lost. The guess stays."""
        self._held.clear()
        self._held_contents.clear()
        self._copies = 0
        self._gone.clear()
        self._latest.clear()
        self._ended.clear()

    def restate(self, now: float) -> None:
        """Put all that is held into the profile anew."""
        parents = {held.parent for held in self._held.values()}
        for block in self._held:
            if block not in parents:
                self._believe(block, now)

    def leave(self) -> None:
        """Have nothing to do with the pool's contents any more."""
        self.forget()
        if self in self._contents.views:
            self._contents.views.remove(self)

    def _store(self, event: Stored, now: float) -> None:
        self.block_tokens = event.block_tokens
        if not self.is_followed:
            return
        parent = None if event.parent is None else self._held.get(event.parent)
        if parent is None and event.parent is not None:
            self.counts["orphans"] += len(event.hashes)
            return
        content, depth = (0, 0) if parent is None else (parent.content, parent.depth)
        before, size = event.parent, event.block_tokens
        for number, block in enumerate(event.hashes):
            tokens = event.tokens[number * size : (number + 1) * size].tobytes()
            content = xxhash.xxh3_64_intdigest(tokens + event.extras[number], content)
            depth += 1
            held = self._held.get(block)
            if held is None:
                held = self._held[block] = _Block(content, depth, before)
                self._held_contents[content] = block
            held.copies += 1
            before = block
        self._copies += len(event.hashes)
        self._doubt_copies()
        if before is not None:
            first = depth - len(event.hashes) + 1
            self._latest.append(_Piece(now, first, depth, before))
            self._believe(before, now)
        self.counts["stored"] += len(event.hashes)

    def _doubt_copies(self) -> None:
        """Take each block as stored once if all told copies together have no room."""
        if self.most_tokens and self._copies * self.block_tokens > self.most_tokens:
            for held in self._held.values():
                held.copies = 1
            self._copies = len(self._held)

    def _remove(self, block: int) -> None:
        held = self._held.get(block)
        if held is None:
            return
        self.counts["removed"] += 1
        self._copies -= 1
        held.copies -= 1
        if held.copies:
            return
        del self._held[block]
        self._gone[block] = held
        if len(self._gone) > MOST_GONE:
            self._gone.popitem(last=False)
        self._held_contents.pop(held.content, None)
        found = self._contents.get(held.content)
        if found is not None:
            self._profile.forget(found)

    def _believe(self, last: int, now: float) -> None:
        """Put what a prompt's blocks up to `last` are known to stand for into the profile.

        From its start on and not further than all is known: a profile that has a block has all
        before it.
        """
        blocks: list[int] = []
        for content in self._lineage(last):
            found = self._contents.get(content)
            if found is None:
                break
            blocks.extend(found)
        if blocks:
            if not self._profile.capacity_blocks:  # nothing of ours was sent there yet
                self._profile.resize(DEFAULT_CAPACITY_TOKENS // self.block_tokens)
            self._profile.insert(blocks, now)

    def _attribute(self, ended: Ended, now: float) -> None:
        if not self.block_tokens:
            return
        depth = ended.prompt_tokens // self.block_tokens
        pieces = self._pieces(ended, depth)
        found = [lineage for lineage in pieces if len(lineage) == depth and depth]
        if len(found) != 1:
            self.counts["unclear" if found else "unseen"] += 1
            return
        self.counts["found"] += 1
        spread = self._spread(ended, depth)
        self._contents.learn(found[0], spread, now)
        for content, blocks in zip(found[0], spread, strict=True):
            if content not in self._held_contents:  # it was dropped before we knew what it was
                self._profile.forget(blocks)

    def _pieces(self, ended: Ended, depth: int) -> list[list[int]]:
        """Give the prompts, by their contents, that may be ours: as long, computed when ours was.

        Of several those count whose computing began where ours must have, behind what was cached,
        and of these one that was through much nearer to our first token than the others.
        """
        until = ended.first_token_at + LATE_S
        found: dict[int, _Piece] = {}
        for piece in reversed(self._latest):
            if piece.at < ended.sent_at:
                break
            if piece.depth == depth and piece.at <= until:
                found[piece.last] = piece
        ours = set(ended.blocks)
        lineages = {last: self._lineage(last, self._gone) for last in found}
        fitting = [found[last] for last, one in lineages.items() if self._may_be(one, ours)]
        if ended.cached_tokens is not None:
            first = ended.cached_tokens // self.block_tokens + 1
            fitting = [p for p in fitting if p.first == first] or fitting
        return [lineages[piece.last] for piece in _nearest(fitting, ended.first_token_at)]

    def _may_be(self, lineage: Sequence[int], ours: set[int]) -> bool:
        """Say whether nothing that is known of these contents is of another prompt than ours."""
        for content in lineage:
            known = self._contents.get(content)
            if known is not None and not ours.issuperset(known):
                return False
        return True

    def _lineage(self, last: int, gone: Mapping[int, _Block] = _NONE_GONE) -> list[int]:
        """Give the contents of a prompt's blocks from its start on, if all are held or `gone`."""
        contents: list[int] = []
        block: int | None = last
        while block is not None:
            held = self._held.get(block) or gone.get(block)
            if held is None:
                return []
            contents.append(held.content)
            block = held.parent
        return contents[::-1]

    def _spread(self, ended: Ended, depth: int) -> list[tuple[int, ...]]:
        """Tell for each block of the engine which of our blocks end in it.

        Bytes are taken to be spread evenly over the prompt's tokens: a block more or less at an
        edge makes no difference to a choice.
        """
        tokens_a_block = self.block_bytes * ended.prompt_tokens / max(ended.prompt_bytes, 1)
        spread: list[list[int]] = [[] for _ in range(depth)]
        for number, block in enumerate(ended.blocks):
            place = max(int((number + 1) * tokens_a_block / self.block_tokens - 1e-9), 0)
            if place >= depth:
                break
            spread[place].append(block)
        return [tuple(blocks) for blocks in spread]


def _nearest(pieces: list[_Piece], at: float) -> list[_Piece]:
    """Give the one that came clearly nearest to a time; all of them if none did."""
    if len(pieces) < 2:
        return pieces
    by_distance = sorted(pieces, key=lambda piece: abs(piece.at - at))
    first, second = (abs(piece.at - at) for piece in by_distance[:2])
    return by_distance[:1] if first * CLEARLY + LEAST_STEP_S < second else pieces
