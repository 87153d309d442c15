"""Represent requests as we sent them and as an orchestrator records them, for `matching`."""

from __future__ import annotations

from typing import Any, NamedTuple

ID_LENGTH = 8
"""Minimum characters of an id; a shorter one may be a counter that restarts with every server."""
LONGEST_NAME = 200


class SentAttempt(NamedTuple):
    """An attempt: its start, its end and the id of its answer (None: no answer or no id)."""

    start_s: float
    end_s: float
    answer_id: str | None = None


class WorkerRecord(NamedTuple):
    """A request as the server records it.

    `arrival_s` and `finish_s` are on the server's clock, `read_s` and the time of the previous
    reading, `read_after_s`, on ours. Times are in seconds; None means not reported.
    """

    context: str | None
    generation: str | None
    arrival_s: float | None
    finish_s: float | None
    ids: frozenset[str]
    kv_transfer_s: float | None
    kv_bytes: float | None
    read_after_s: float
    read_s: float

    @property
    def servers(self) -> tuple[str | None, str | None]:
        return self.context, self.generation


def record(told: object, read_after_s: float, read_s: float) -> WorkerRecord | None:
    """Return an orchestrator's record, or None if it names no server.

    Other missing or malformed fields are left out: the format varies between versions.
    """
    if not isinstance(told, dict):
        return None
    context, generation = (_text(told.get(name)) for name in ("ctx_server", "gen_server"))
    if context is None and generation is None:
        return None
    legs = [_mapping(told.get(f"{leg}_perf_metrics")) for leg in ("ctx", "gen")]
    timings = [
        _mapping((_mapping(leg.get("perf_metrics")) or leg).get("timing_metrics")) for leg in legs
    ]
    of_generation = timings[1]
    began, ended = (
        _number(of_generation.get(f"kv_cache_transfer_{edge}")) for edge in ("start", "end")
    )
    size = _number(of_generation.get("kv_cache_size"))
    # The main branch reports only the times, and 0 if there was no transfer.
    moved = size if "kv_cache_size" in of_generation else began
    ids = {
        str(value)
        for part in (told, *legs)
        for name, value in part.items()
        if name.endswith("request_id") and isinstance(value, str | int)
    }
    return WorkerRecord(
        context=context,
        generation=generation,
        arrival_s=_number(told.get("disagg_server_arrival_time")),
        finish_s=_number(of_generation.get("last_token_time")),
        ids=frozenset(one for one in ids if len(one) >= ID_LENGTH),
        kv_transfer_s=(
            ended - began
            if moved and began is not None and ended is not None and ended >= began
            else None
        ),
        kv_bytes=size or None,
        read_after_s=read_after_s,
        read_s=read_s,
    )


def _text(told: object) -> str | None:
    return told[:LONGEST_NAME] if isinstance(told, str) and told else None


def _number(told: object) -> float | None:
    return (
        float(told)
        if isinstance(told, int | float) and not isinstance(told, bool) and abs(told) < 2**53
        else None
    )


def _mapping(told: object) -> dict[str, Any]:
    return told if isinstance(told, dict) else {}
