"""Counts of the thoughts that the answers of a session showed."""

from __future__ import annotations

from collections.abc import Iterator

from msgspec import Struct


class ThoughtsSeen(Struct, kw_only=True, omit_defaults=True):
    """Counts of the answers that thoughts would have spoilt.

    `stopped` were ended by a stop string within their thoughts, and asked again without stop
    strings. `withheld` were asked without them from the beginning, once this had happened: both are
    cut at the first stop string behind their thoughts. `unmarked` were cut at max_tokens within
    thoughts that the chat template had opened, so that nothing in them says so.
    """

    stopped: int = 0
    withheld: int = 0
    unmarked: int = 0

    def remarks(self) -> Iterator[str]:
        """Yield what a reader of the scores should know."""
        if self.stopped:
            yield (
                f"stop strings ended {self.stopped} answers within the model's thoughts: they were"
                f" asked again, and {self.withheld} others asked, without stop strings, and"
                " serve-eval cut them at the first one behind the thoughts"
            )
        if self.unmarked:
            yield (
                f"{self.unmarked} answers were cut within thoughts that the chat template opens:"
                " they count as thoughts, without an answer"
            )
