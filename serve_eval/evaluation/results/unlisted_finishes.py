"""Count the finish reasons of no known server, by which nobody knows if an answer is whole."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Mapping

MOST_REASONS = 254
"""Number of different reasons that are kept apart."""
OTHERS = "others"


class UnlistedFinishes:
    """The reason of each sample that has such a one, unless the plan knows it."""

    def __init__(self, known: Collection[str], samples: int) -> None:
        self._known = frozenset(reason.strip().lower() for reason in known)
        self._samples = samples
        self._names: list[str] = []
        self._of = bytearray()

    def note(self, i: int, reason: str | None) -> bool:
        """Keep the reason of a sample. Return False if the plan says that it ends an answer."""
        if reason is None or reason.strip().lower() in self._known:
            return False
        if not self._of:
            self._of = bytearray(self._samples)
        name = reason if len(self._names) < MOST_REASONS or reason in self._names else OTHERS
        if name not in self._names:
            self._names.append(name)
        self._of[i] = self._names.index(name) + 1
        return True

    def forget(self, i: int) -> None:
        """Remove the reason of a sample, if it has one."""
        if self._of:
            self._of[i] = 0

    def counts(self) -> Mapping[str, int]:
        """Return the number of samples of each reason, the most frequent first."""
        found = Counter(self._of)
        named = {name: n for code, name in enumerate(self._names, 1) if (n := found[code])}
        return dict(sorted(named.items(), key=lambda item: (-item[1], item[0])))
