"""Show the first steps of a search and how many it is expected to take, without asking anything."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from serve_eval.stats.noisy_search import ErrorRates
from serve_eval.stats.search_cost import SearchCost, SimulatedSearch
from serve_eval.workflows.bisect.configurations import Configurations
from serve_eval.workflows.bisect.search import ALPHA, CONFIDENCE


@dataclass(frozen=True, slots=True, kw_only=True)
class BisectionPreview:
    """The first three tests, and the cost of a search in which the bad configuration fails.

    `if_worse` and `if_same` are the third configuration after each result of the second one (None:
    the search ends).
    """

    changes: tuple[tuple[str, str, str], ...]
    first: str
    second: str | None
    if_worse: str | None
    if_same: str | None
    cost: SearchCost

    @property
    def content(self) -> dict[str, Any]:
        """The preview as JSON values; every start counts, that of the good one included."""
        return {
            "changes": [
                {"name": name, "good": good, "bad": bad} for name, good, bad in self.changes
            ],
            "steps": [self.first, self.second, {"worse": self.if_worse, "same": self.if_same}],
            "starts": {
                "mean": round(self.cost.mean + 1, 1),
                "most": self.cost.most + 1,
                "if_the_bad_one_is_not_worse": 2,
            },
        }

    def lines(self) -> Iterator[str]:
        """Yield the preview as text."""
        for name, good, bad in self.changes:
            yield f"  {name}: {good} -> {bad}"
        yield f"step 1: {self.first}"
        yield f"step 2, if step 1 is worse: {self.second or 'none'}"
        yield f"step 3, if step 2 is worse: {self.if_worse or 'none'}"
        yield f"step 3, if step 2 is the same: {self.if_same or 'none'}"
        mean, most = self.cost.mean + 1, self.cost.most + 1
        yield (
            f"server starts: {mean:.1f} expected if step 1 is worse ({most} in 19 of 20 searches),"
            " else 2"
        )


def preview(found: Configurations) -> BisectionPreview:
    """Return the first steps and the expected number of starts, each of them a new server."""
    search = SimulatedSearch(found.space, ErrorRates(alpha=ALPHA, beta=ALPHA), CONFIDENCE)
    bad = found.space.bad
    second = search.choose(((bad, True),))
    third = [
        None if second is None else search.choose(((bad, True), (second, worse)))
        for worse in (True, False)
    ]

    def say(configuration: int | None) -> str | None:
        return None if configuration is None else found.describe(configuration)

    return BisectionPreview(
        changes=tuple((one.name, one.good, one.bad) for one in found.changes),
        first=found.last,
        second=say(second),
        if_worse=say(third[0]),
        if_same=say(third[1]),
        cost=search.measure(),
    )
