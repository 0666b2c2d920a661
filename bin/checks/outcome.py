"""One stage's outcome, and what a whole run adds up to."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from stack.report import say

MARKS = {"ok": "ok    ", "failed": "FAILED", "skipped": "skip  "}


@dataclass(frozen=True, kw_only=True)
class Outcome:
    """How a stage ended; `text` is shown when it failed, `why` when it was skipped."""

    verdict: str
    text: str = ""
    why: str = ""


@dataclass
class Run:
    """Collects the outcomes of the stages and the skipped tests."""

    strict: bool
    failed: list[str] = field(default_factory=list)
    skipped: list[str] = field(default_factory=list)
    skipped_tests: list[dict[str, Any]] = field(default_factory=list)
    lacks: list[str] = field(default_factory=list)
    last_words: str = ""

    def stage(self, title: str, work: Callable[[], Outcome]) -> None:
        """Run a stage and print its line: verdict, name, seconds."""
        started = time.monotonic()
        outcome = work()
        took = f"{time.monotonic() - started:6.1f} s"
        why = f"  {outcome.why}" if outcome.why else ""
        say(f"{MARKS[outcome.verdict]} {title:<28}{took}{why}")
        if outcome.verdict == "failed":
            self.failed.append(title)
            say(outcome.text)
        if outcome.verdict == "skipped":
            self.skipped.append(f"{title}: {outcome.why}")

    def forbidden_skips(self) -> list[str]:
        """List what may not be skipped under CI: all but tests that want the sample data."""
        if not self.strict:
            return []
        tests = [f"{s['test']}: {s['reason']}" for s in self.skipped_tests if not s["shared"]]
        return [*self.lacks, *tests]

    def close(self) -> int:
        """Print what was skipped and what failed; pytest's own summary stands last."""
        self._list_skipped()
        forbidden = self.forbidden_skips()
        for what in forbidden:
            say(f"FAILED with CI=true nothing may be skipped: {what}")
        if self.failed:
            say(f"FAILED {', '.join(self.failed)}")
        if self.last_words:
            say(self.last_words)
        return 1 if self.failed or forbidden else 0

    def _list_skipped(self) -> None:
        reasons: dict[str, int] = {}
        for skip in self.skipped_tests:
            reasons[skip["reason"]] = reasons.get(skip["reason"], 0) + 1
        lines = [f"  this machine lacks {what}" for what in self.lacks]
        lines += [f"  {stage}" for stage in self.skipped]
        lines += [f"  {count} tests: {reason}" for reason, count in sorted(reasons.items())]
        if lines:
            say("\nSkipped:")
            say("\n".join(lines))
        say()
