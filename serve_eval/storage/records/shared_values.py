"""Make equal values of many records one object: a run of 100,000 samples has few targets."""

from __future__ import annotations

from collections.abc import Mapping

from msgspec.structs import force_setattr

from serve_eval.storage.records.scores import ScoreRecord

MOST, LONGEST = 10_000, 80
"""Number and characters of the texts that are remembered."""
_NUMBERS = {0.0: 0.0, 1.0: 1.0}


class SharedValues:
    """The values that records have shared so far."""

    def __init__(self) -> None:
        self._known: dict[str, str] = {}
        self._nothing: dict[str, float] = {}

    def text(self, text: str | None) -> str | None:
        """Return an equal text, one object for all short ones as long as these are few."""
        if text is None or len(text) > LONGEST:
            return text
        known = self._known
        return known.setdefault(text, text) if len(known) < MOST else known.get(text, text)

    def score(self, record: ScoreRecord, ids: Mapping[str, str] | None = None) -> ScoreRecord:
        """Return a record that was just read, with shared values, and with its id as in `ids`."""
        if ids is not None:
            force_setattr(record, "id", ids.get(record.id, record.id))
        force_setattr(record, "value", _NUMBERS.get(record.value, record.value))
        for field in ("answer", "target"):
            force_setattr(record, field, self.text(getattr(record, field)))
        if not record.parts:
            force_setattr(record, "parts", self._nothing)
        return record
