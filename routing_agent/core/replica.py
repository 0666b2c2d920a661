"""What this agent knows of one replica: its endpoint, its load, its health.

The runtime lives as long as the replica's address: new tables change the endpoint, not the load.
"""

from __future__ import annotations

from math import ceil
from typing import Final, Literal

from routing_agent.core.cache_notes import CacheNotes
from routing_agent.core.ejection import Breaker
from routing_agent.core.figures import EngineFigures
from routing_agent.core.gossip import Hearsay
from routing_agent.core.prefill import Prefill
from routing_agent.core.profile import DEFAULT_CAPACITY_TOKENS, MOST_BLOCKS, PrefixProfile
from routing_agent.core.residence import Residence
from routing_agent.wire import Endpoint, PoolSettings

Health = Literal["unknown", "healthy", "unhealthy"]

# Who found out that a live engine must get no new request, or may not be what it should be.
DoubtSource = Literal[
    "state",  # it says that it sleeps or is paused
    "answers",  # it refused a request because it is shutting down, or its core is dead
    "steps",  # requests run in it and nothing is computed
    "identity",  # it serves other models than it should, or does not take our key
]


# How much more than it computes at once an engine is sent, so that a place that becomes free is
# taken without a round trip.
SPARE_RATIO: Final = 0.1
# The first word of the reasons that say: it is there, and computes nothing.
HUNG: Final = "hung"


class Replica:
    """The mutable runtime of one replica. All times are monotonic seconds of this agent."""

    __slots__ = ("adapters", "blocked", "breaker", "cache", "cached_prompt_tokens_total",
                 "ceiling", "detour_s", "doubts", "ejections_total", "endpoint", "engine_version",
                 "errors_total", "figures", "health", "health_reason", "hearsay", "id",
                 "inflight_at_scrape", "inflight_requests", "inflight_tokens", "is_gone",
                 "kv_capacity_tokens", "last_token_at", "leaving_at", "max_running",
                 "model_names", "most_blocks", "others_inflight", "others_waiting",
                 "output_tokens_total", "pool", "prefill", "probe_streak", "process_started_at",
                 "profile", "prompt_tokens_total", "ramp_from", "requests_total", "restarted_at",
                 "scrape_error", "scraped_at", "settings", "warmed")  # fmt: skip

    def __init__(self, endpoint: Endpoint, *, pool: str, settings: PoolSettings) -> None:
        self.id = endpoint.replica
        self.endpoint = endpoint
        self.pool = pool
        self.settings = settings
        self.inflight_requests = 0
        self.inflight_tokens = 0
        self.figures = EngineFigures()
        self.scraped_at: float | None = None
        self.scrape_error = ""
        self.inflight_at_scrape = 0  # tokens of ours at the last good scrape
        # Requests of others then; those that waited, without what agents tell of directly.
        self.others_inflight = self.others_waiting = 0
        self.health: Health = "unknown"
        self.health_reason = "not probed yet"
        self.probe_streak = 0  # good probes in a row if positive, bad ones if negative
        self.warmed = False
        self.process_started_at: float | None = None  # Unix seconds, as the engine says
        self.restarted_at: float | None = None  # when we noticed; monotonic
        self.doubts: dict[DoubtSource, str] = {}
        self.engine_version = ""
        self.max_running: int | None = None  # requests it computes at once
        self.kv_capacity_tokens: int | None = None  # what its pages say; its metrics may say too
        self.model_names: tuple[str, ...] = ()  # what the engine lists under /v1/models
        self.breaker = Breaker(settings)
        self.last_token_at: float | None = None
        self.is_gone = False  # no longer in the newest table
        self.leaving_at: float | None = None  # since when it drains or is gone from the table
        self.ramp_from: float | None = None  # start of slow start; None = at full weight
        self.requests_total = self.errors_total = self.ejections_total = 0
        self.prompt_tokens_total = self.cached_prompt_tokens_total = self.output_tokens_total = 0
        self.cache = CacheNotes()
        self.adapters = Residence()
        self.profile = PrefixProfile()
        self.prefill, self.hearsay = Prefill(), Hearsay()
        self.ceiling: int | None = None  # how many requests of ours it has room for; None: any
        self.most_blocks = MOST_BLOCKS  # its part of what this agent may remember
        self.detour_s = 0.0  # that it must be sooner by: it is in another zone than this agent
        self.blocked = ""  # why no new request may come here; "" = it may
        self._measure_room()
        self._judge()

    # -- what the table says -------------------------------------------------------------------

    def adopt(self, endpoint: Endpoint, *, pool: str, settings: PoolSettings, now: float) -> None:
        """Take over what a new table says about this replica."""
        if endpoint.state == "ready":
            if self.endpoint.state == "warming":
                self.ramp_from = now
            self.leaving_at = None
        elif endpoint.state == "draining" and self.leaving_at is None:
            self.leaving_at = now
        self.endpoint = endpoint
        self.pool = pool
        self.settings = settings
        self.breaker.adopt(settings)
        self.adapters.want(endpoint, now)
        self._measure_room()
        self._judge()

    def leave(self, now: float) -> None:
        """Note that the newest table no longer has this replica; its streams go on for a while."""
        if self.leaving_at is None:
            self.leaving_at = now
        self.is_gone = True
        self._judge()

    # -- what probes and scrapes say -----------------------------------------------------------

    def note_probe(self, ok: bool, reason: str, now: float) -> bool:
        """Note one health probe; true if that changed the replica's health.

        A replica turns unhealthy after `probe_failures` bad probes in a row and healthy again after
        `probe_recoveries` good ones. A token seen within the last probe interval outweighs a bad
        probe: an engine that generates is alive, however slow its health page.
        """
        if ok:
            self.probe_streak = max(self.probe_streak, 0) + 1
            wanted = self.settings.probe_recoveries if self.health == "unhealthy" else 1
            if self.probe_streak >= wanted:
                return self.note_health(True, reason, now)
            return False
        if self._generated_lately(now):
            return False
        self.probe_streak = min(self.probe_streak, 0) - 1
        if -self.probe_streak >= self.settings.probe_failures:
            return self.note_health(False, reason, now)
        return False

    def note_health(self, healthy: bool, reason: str, now: float) -> bool:
        """Set the replica's health; true if it changed. Coming back starts a slow start."""
        wanted: Health = "healthy" if healthy else "unhealthy"
        changed = wanted != self.health
        if changed and self.health == "unhealthy":
            self.ramp_from = now
            self.breaker.renewed()
        if changed and healthy:
            self.adapters.note_well(now)
        self.health = wanted
        self.health_reason = reason
        self._judge()
        return changed

    def note_scrape(self, figures: EngineFigures, now: float) -> None:
        """Take over the figures of a good scrape."""
        self.figures = figures
        self.scraped_at = now
        self.scrape_error = ""
        self.inflight_at_scrape = self.inflight_tokens
        self.others_inflight = self._others()
        self.hearsay.expire_loads(now)
        untold = max(self.others_inflight - self.hearsay.told_requests, 0)
        self.others_waiting = min((figures.waiting or 0) + 1, untold)
        self.prefill.is_shared = self.others_inflight > 0
        self.prefill.look_again()
        self._measure_room()
        self._judge()

    def note_facts(self, *, kv_capacity_tokens: int | None, max_running: int | None) -> None:
        """Take over what the engine tells of its size; scrapes that tell it too are newer."""
        self.kv_capacity_tokens = kv_capacity_tokens
        self.max_running = max_running
        self._measure_room()

    def note_scrape_error(self, error: str) -> None:
        """Note that a scrape failed; the last good figures stay, with their age."""
        self.scrape_error = error
        self._measure_room()

    def note_doubt(self, source: DoubtSource, reason: str) -> bool:
        """Keep new requests away for `reason`, or let them come again (""); true if it changed."""
        changed = self.doubts.get(source, "") != reason
        if reason:
            self.doubts[source] = reason
        else:
            self.doubts.pop(source, None)
        if changed:
            self._judge()
        return changed

    def note_restart(self, now: float) -> None:
        """Forget what was held against the process that is gone; the new one starts gently."""
        self.warmed = False
        self.restarted_at = now
        self.ramp_from = now
        self.doubts.pop("answers", None)
        self.doubts.pop("steps", None)
        self.breaker.renewed()
        self.adapters.note_restart(now)
        self.profile.clear()
        self.prefill.clear()
        self.cache.tells_cached = False
        self._judge()

    def note_process(self, started_at: float | None) -> bool:
        """Note when the engine's process started (Unix seconds); true if it is another one."""
        before = self.process_started_at
        self.process_started_at = started_at
        return before is not None and started_at is not None and abs(before - started_at) > 1.0

    # -- what requests say ---------------------------------------------------------------------

    def begin(self, tokens: int, now: float) -> bool:
        """Charge a request to this replica; true if it is the breaker's trial."""
        self.inflight_requests += 1
        self.inflight_tokens += tokens
        self.requests_total += 1
        if self.breaker.state == "closed":
            return False
        trial = self.breaker.began(now)
        self._judge()
        return trial

    def release(self, tokens: int) -> None:
        """Give back what `begin` charged."""
        self.inflight_requests -= 1
        self.inflight_tokens -= tokens

    def note_success(self, now: float, *, trial: bool) -> None:
        """Note an answer that proves the engine works."""
        if self.breaker.state == "closed":
            return
        if self.breaker.succeeded(trial=trial):
            self.ramp_from = now
        self._judge()

    def note_failure(self, now: float, *, trial: bool, may_open: bool) -> bool:
        """Note a failure of the engine; true if that opened its breaker."""
        self.errors_total += 1
        opened = self.breaker.failed(now, trial=trial, may_open=may_open)
        if opened:
            self.ejections_total += 1
        self._judge()
        return opened

    def note_abandoned(self, *, trial: bool) -> None:
        """Note a request that ended without telling anything about the engine."""
        self.breaker.abandoned(trial=trial)
        if trial:
            self._judge()

    # -- what the choice needs -----------------------------------------------------------------

    def exclusion(self, now: float) -> str:
        """Say why no new request may go here, or "" if one may."""
        if not self.blocked or (self.blocked == BREAKER_OPEN and self.breaker.admits(now)):
            return ""
        return self.blocked

    def is_hung(self, now: float) -> bool:
        """Say whether it computes nothing any more, by its probes or its steps.

        Tokens seen since outweigh its probes; nothing outweighs its steps.
        """
        if "steps" in self.doubts:
            return True
        is_silent = self.health == "unhealthy" and self.health_reason.startswith(HUNG)
        return is_silent and not self._generated_lately(now)

    def is_ejected(self) -> bool:
        """Say whether health or breaker keep this replica out."""
        return self.health == "unhealthy" or self.breaker.state != "closed"

    def has_room(self) -> bool:
        """Say whether one more request may be sent now."""
        return self.ceiling is None or self.inflight_requests < self.ceiling

    def kv_tokens(self) -> int | None:
        """Give how many tokens its KV cache holds: by its metrics, else by its pages."""
        return self.figures.kv_capacity_tokens or self.kv_capacity_tokens

    def fit_profile(self, block_tokens: float) -> None:
        """Let the profile hold what the KV cache does, or what the pool's settings say."""
        blocks = self.settings.profile_blocks
        if blocks is None:
            tokens = self.kv_tokens()
            share = self.hearsay.share()
            blocks = max(int((tokens or DEFAULT_CAPACITY_TOKENS) * share / block_tokens), 1)
        blocks = min(blocks, self.most_blocks)
        if blocks != self.profile.capacity_blocks:
            self.profile.resize(blocks)

    def tokens_of_others(self, now: float) -> float | None:
        """Estimate the prompt tokens that others have waiting here; None: the figures are stale.

        Other agents tell theirs, where they reach this one. Of the rest, the last scrape tells how
        many requests waited.
        """
        scraped_at = self.scraped_at
        if scraped_at is None or now - scraped_at > self.settings.scrape_stale_s:
            return None
        if not self.others_waiting:
            return self.hearsay.told_tokens
        mean = self.hearsay.mean_waiting_tokens(now)
        mean = self.prefill.mean_tokens if mean is None else mean
        return self.hearsay.told_tokens + self.others_waiting * mean

    def kv_usage_now(self, now: float) -> float:
        """Estimate the KV usage with what was sent here since the last look; 0.0 if not known."""
        usage, scraped_at = self.figures.kv_usage, self.scraped_at
        if usage is None or scraped_at is None or now - scraped_at > self.settings.scrape_stale_s:
            return 0.0
        capacity = self.kv_tokens()
        if capacity:
            usage += (self.inflight_tokens - self.inflight_at_scrape) / capacity
        return usage

    def weight(self, now: float) -> float:
        """Give the replica's share relative to others, lower during its slow start."""
        if self.ramp_from is None:
            return self.endpoint.weight
        age_s = max(now - self.ramp_from, 0.0)  # another process may have looked later
        if age_s >= self.settings.slow_start_s:
            self.ramp_from = None
            return self.endpoint.weight
        low = self.settings.slow_start_from_ratio
        ratio = low + (1 - low) * age_s / self.settings.slow_start_s
        return self.endpoint.weight * max(ratio, 0.001)

    def _generated_lately(self, now: float) -> bool:
        last = self.last_token_at
        return last is not None and now - last <= self.settings.probe_interval_s

    def objection(self) -> str:
        """Say why a live engine should get no request, or "" if it should."""
        if self.health == "unhealthy":
            return ""
        if self.figures.is_asleep:
            return "asleep: its metrics say so; wake it up to use it"
        return next(iter(self.doubts.values()), "")

    def _measure_room(self) -> None:
        """Work out the ceiling of our requests anew: what the pool's settings say, else what the
        engine computes at once, less what others had in it at the last good scrape.
        """
        ceiling = self.settings.max_concurrency_per_replica
        if ceiling is None and self.max_running is not None:
            ceiling = self.max_running + ceil(self.max_running * SPARE_RATIO) - self._others()
        self.ceiling = ceiling

    def _others(self) -> int:
        running, waiting = self.figures.running, self.figures.waiting
        if self.scrape_error or running is None:
            return 0
        return max(running + (waiting or 0) - self.inflight_requests, 0)

    def _judge(self) -> None:
        """Work out `blocked` anew; called whenever something it depends on changed."""
        if self.is_gone:
            self.blocked = "removed from the routing table"
        elif self.endpoint.state != "ready":
            self.blocked = _STATE_REASONS[self.endpoint.state]
        elif self.health == "unhealthy":
            self.blocked = f"unhealthy: {self.health_reason}"
        elif objection := self.objection():
            self.blocked = objection
        elif self.breaker.state != "closed":
            self.blocked = BREAKER_OPEN
        else:
            self.blocked = ""


BREAKER_OPEN = "breaker open"
_STATE_REASONS = {
    "warming": "warming up",
    "ejected": "ejected by an operator",
    "draining": "draining",
}
