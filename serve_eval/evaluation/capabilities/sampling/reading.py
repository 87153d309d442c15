"""Conclude from the questions of the probe which sampling fields the server heeds or adds.

Texts are compared. A server that does not give one answer twice, greedy or with a seed, is not
judged where it does not: nothing is known there.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass, field
from typing import NamedTuple

from serve_eval.frozen import freeze
from serve_eval.protocol.sampling_fields import OF_OPTIONS, ROWS, TABLE, SamplingFieldRow
from serve_eval.schema import Obedience, SamplingDefault, SamplingDefaults

PROMPT = "Write four short sentences about the cat, the dog and the bird in the old house."
"""Its words come again in most answers, so that a small penalty for repeated tokens shows."""
HOT, SEED = 2.0, 20261129
"""The highest temperature that OpenAI allows, at which unlikely tokens are drawn, and the seed with
which one answer comes twice."""
LONG, SHORT = 32, 12
"""Tokens of answers in which a small change must show, and of those that change at once."""
REPEATED_PENALTIES = ("frequency_penalty", "presence_penalty")
"""Penalties for tokens of the answer alone, which need one long enough to repeat some."""


@freeze
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


class ProbeAnswer(NamedTuple):
    """The text of an answer, or the reason why there is none; `refused`: the server refuses it."""

    text: str = ""
    refused: bool = False
    why: str = ""


NONE = ProbeAnswer()


@dataclass(slots=True, kw_only=True)
class Readings:
    """The answers so far, by question, and what they show.

    `neutral` are the neutral values that are sent together, by usual names.
    """

    server: str | None
    neutral: dict[str, float]
    answers: dict[str, ProbeAnswer] = field(default_factory=dict)
    cut_off: bool = False

    def text(self, name: str) -> str:
        """Return the text of an answer, empty if there is none."""
        return self.answers.get(name, NONE).text

    def same(self, one: str, other: str) -> bool:
        """Return True if two answers begin alike, as far as the shorter one was to go."""
        a, b = (self.text(name).rstrip("�") for name in (one, other))
        return bool(a and b) and (a.startswith(b) or b.startswith(a))

    def differs(self, one: str, other: str) -> bool:
        """Return True if there are two answers, and they are not the same."""
        return bool(self.text(one) and self.text(other)) and not self.same(one, other)

    def steady(self, kind: str) -> bool:
        """Return True if greedy or seeded answers with neutral values come twice."""
        if kind == "hot" and not self.differs("hot", "greedy"):
            return False  # the temperature is ignored
        return self.same(kind, f"{kind} again") and not self.differs(kind, f"{kind} third")

    @property
    def refuses_neutral(self) -> bool:
        """True if the server refuses the neutral values together."""
        return self.answers.get("greedy", NONE).refused

    def list_refused(self) -> list[str]:
        """Return the fields whose neutral value alone is refused."""
        return [name for name in self.neutral if self.answers.get(f"alone {name}", NONE).refused]

    def list_unsettled(self) -> list[str]:
        """Return the kinds whose answers with neutral values differ."""
        kinds = ("greedy", "hot") if self.differs("hot", "greedy") else ("greedy",)
        return [kind for kind in kinds if self.differs(kind, f"{kind} again")]

    def list_added(self) -> list[str]:
        """Return the kinds in which an answer without the fields is another one."""
        return [
            kind
            for kind in ("greedy", "hot")
            if self.steady(kind) and self.differs(kind, f"{kind} bare")
        ]

    @property
    def lacks_presence(self) -> bool:
        """True if a penalty for repeated tokens changed no greedy answer."""
        return self.steady("hot") and any(
            self.same("greedy", f"extreme {name}") for name in REPEATED_PENALTIES
        )

    def list_hot_penalties(self) -> dict[str, ProbeQuestion]:
        """Return the questions of these penalties above temperature 0."""
        return {
            f"hot extreme {name}": ProbeQuestion(
                temperature=HOT, fields={**self.neutral, name: ROWS[name].extreme}
            )
            for name in REPEATED_PENALTIES
            if self.same("greedy", f"extreme {name}")
        }

    def obeys(self, name: str) -> Obedience:
        """Return how the server handles the value of a field."""
        if name == "temperature":
            return self._obeys_temperature()
        extreme = f"extreme {name}"
        answer = self.answers.get(extreme, NONE)
        if answer.refused or self.answers.get(f"alone {name}", NONE).refused:
            return "refused"
        if not answer.text:
            return "unknown"
        if ROWS[name].greedy:
            return self._obeys_penalty(name)
        if not self.differs("hot", "greedy"):
            return "unknown"
        if self.same(extreme, "greedy"):
            return "heeded"
        return "heeded" if self.steady("hot") and self.differs(extreme, "hot") else "ignored"

    def _obeys_temperature(self) -> Obedience:
        if self.answers.get("hot", NONE).refused:
            return "refused"
        if self.differs("hot", "greedy"):
            return "heeded"
        return "ignored" if self.same("hot", "greedy") else "unknown"

    def _obeys_penalty(self, name: str) -> Obedience:
        if self.steady("greedy") and self.differs(f"extreme {name}", "greedy"):
            return "heeded"
        if self.steady("hot") and self.differs(f"hot extreme {name}", "hot"):
            return "heeded"
        return "ignored" if self.steady("greedy") else "unknown"

    def adds(self, row: SamplingFieldRow) -> bool | None:
        """Return True if the server adds a value for a field, None if that is not known.

        The answers say nothing of a field whose neutral value is not heeded.
        """
        if row.name == "temperature":
            if not self.steady("hot") or not self.text("warm") or not self.text("unset"):
                return None
            return self.differs("warm", "unset")
        if row.name not in self.neutral or self.obeys(row.name) != "heeded":
            return None
        if any(self._shows(row.name, kind) for kind in self.list_added()):
            return True
        if self.steady("hot"):
            return False if self._is_excluded(row.name, "hot") else None
        if row.greedy and self.steady("greedy"):
            return False if self._is_excluded(row.name, "greedy") else None
        return None

    def _shows(self, name: str, kind: str) -> bool:
        """Return True if leaving out a field changes the answer, and does so again."""
        without = f"{kind} without {name}"
        return (
            self.differs(without, kind)
            and self.same(without, f"{without} again")
            and self.differs(f"{without} again", f"{kind} third")
        )

    def _is_excluded(self, name: str, kind: str) -> bool:
        """Return True if leaving out a field, or all of them, leaves the answer as it is."""
        return self.same(kind, f"{kind} bare") or self.same(kind, f"{kind} without {name}")


def conclude(told: Readings, *, requests: int, tokens: int, wall_s: float) -> SamplingDefaults:
    """Return the sampling defaults that the answers show."""
    fields = tuple(
        SamplingDefault(
            name=row.name,
            sent_as=row.name_at(told.server),
            obedience=told.obeys(row.name),
            adds=told.adds(row),
            neutral=row.neutral_at(told.server),
        )
        for row in TABLE
    )
    return SamplingDefaults(
        fields=fields,
        unknown=_explain(told, {one.name: one for one in fields}),
        requests=requests,
        tokens=tokens,
        wall_s=wall_s,
    )


def _explain(told: Readings, fields: Mapping[str, SamplingDefault]) -> str:
    """Return why something is unknown, empty if everything is known."""
    if all(one.adds is not None for one in fields.values()):
        return ""
    if told.cut_off:
        return "the server answered too slowly"
    if not told.text("greedy"):
        return "a short request with neutral values got no text"
    if not told.steady("greedy"):
        return "greedy answers to one prompt differ"
    if not told.differs("hot", "greedy"):
        return "the temperature changes no answer"
    if not told.steady("hot"):
        return "a seed does not give one answer twice"
    return ""
