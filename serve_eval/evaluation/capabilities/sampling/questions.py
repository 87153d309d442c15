"""List the requests of the probe: what each of them sends and leaves out. Pure."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass, field

from serve_eval.protocol.sampling_fields import OF_OPTIONS, ROWS, TABLE

PROMPT = "Write four short sentences about the cat, the dog and the bird in the old house."
"""Its words come again in most answers, so that a small penalty for repeated tokens shows."""
HOT, SEED = 2.0, 20261129
"""The highest temperature that OpenAI allows, at which unlikely tokens are drawn, and the seed with
which one answer comes twice."""
LONG, SHORT = 32, 12
"""Tokens of answers in which a small change must show, and of those that change at once."""
REPEATED_PENALTIES = ("frequency_penalty", "presence_penalty")
"""Penalties for tokens of the answer alone, which need one long enough to repeat some."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ProbeQuestion:
    """One request of the probe.

    `temperature` None leaves it out.
    """

    temperature: float | None
    fields: Mapping[str, float] = field(default_factory=dict, hash=False)
    tokens: int = LONG


def list_neutral(server: str | None, refused: Collection[str] = ()) -> dict[str, float]:
    """Return the neutral values to send together, by usual names; no temperature.

    Fields that are `refused`, or have no neutral value that is safe with the server, are left out.
    """
    return {
        row.name: value
        for row in TABLE
        if row.name != "temperature"
        and row.name not in refused
        and (value := row.neutral_at(server)) is not None
    }


def list_controls(neutral: Mapping[str, float]) -> dict[str, ProbeQuestion]:
    """Return the questions that decide if anything is added.

    At temperature 0 and above it, each with the neutral values twice and without them once. The
    last two decide about the temperature itself.
    """
    found = {}
    for name, temperature in (("greedy", 0.0), ("hot", HOT)):
        found[name] = ProbeQuestion(temperature=temperature, fields=neutral)
        found[f"{name} again"] = ProbeQuestion(temperature=temperature, fields=neutral)
        found[f"{name} bare"] = ProbeQuestion(temperature=temperature)
    found["warm"] = ProbeQuestion(temperature=1.0, fields=neutral)
    found["unset"] = ProbeQuestion(temperature=None, fields=neutral)
    return found


def list_extremes(neutral: Mapping[str, float]) -> dict[str, ProbeQuestion]:
    """Return a question for each field that sends its extreme value, and the others neutral.

    Penalties are tried at temperature 0, and the others where they make an answer greedy.
    """
    found = {}
    for row in TABLE:
        if row.name == "temperature":
            continue
        found[f"extreme {row.name}"] = ProbeQuestion(
            temperature=0.0 if row.greedy else HOT,
            fields={**neutral, row.name: row.extreme},
            tokens=LONG if row.name in REPEATED_PENALTIES else SHORT,
        )
    return found


def leave_one_out(
    neutral: Mapping[str, float], names: Collection[str], *, hot: bool
) -> Iterator[tuple[str, ProbeQuestion]]:
    """Yield a question per field that sends all neutral values but that of the field."""
    for name in names:
        if name in neutral and (hot or ROWS[name].greedy):
            kind = "hot" if hot else "greedy"
            rest = {one: value for one, value in neutral.items() if one != name}
            yield (
                f"{kind} without {name}",
                ProbeQuestion(temperature=HOT if hot else 0.0, fields=rest),
            )


__all__ = [
    "HOT",
    "LONG",
    "OF_OPTIONS",
    "PROMPT",
    "SEED",
    "SHORT",
    "ProbeQuestion",
    "leave_one_out",
    "list_controls",
    "list_extremes",
    "list_neutral",
]
