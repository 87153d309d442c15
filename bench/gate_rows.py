"""Define the rows of the gate: how each follows from what was measured, and in which unit."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from gate_measure import COUNTED, GSM8K, SUMS, Figures

_SMALL, _LARGE = SUMS
_FURTHER = _LARGE - _SMALL


@dataclass(frozen=True, slots=True, kw_only=True)
class RowOfGate:
    """A row: its `value`, the subjects that it comes from, and what it is divided by.

    `units` name the figures of the yardstick and of the bare client; a row without units does not
    depend on the machine. `slack` is an absolute difference that is always allowed, for rows whose
    usual value is close to nothing. `exact`: no tolerance but the slack.
    """

    name: str
    unit: str
    value: Callable[[Figures], float]
    subjects: Sequence[str]
    units: tuple[str, str] | None = ("yardstick_s", "bare_ms")
    slack: float = 0.0
    exact: bool = False

    def ratios(self, figures: Figures) -> tuple[float, ...]:
        """Return the value over the yardstick and over the bare client; itself without units."""
        value = self.value(figures)
        return tuple(value / figures[unit] for unit in self.units) if self.units else (value,)


def _slope(name: str, sizes: tuple[int, int], figure: str) -> Callable[[Figures], float]:
    few, many = sizes

    def slope(figures: Figures) -> float:
        further = figures[f"{name}_{many}_{figure}"] - figures[f"{name}_{few}_{figure}"]
        return 1000 * further / (many - few)

    return slope


def _growth(figures: Figures) -> float:
    more = figures[f"sums_{_LARGE}_peak_mb"] - figures[f"sums_{_SMALL}_peak_mb"]
    return max(0.0, more * 2**20 / _FURTHER)


_OF_SUMS, _OF_GSM8K = ("sums small", "sums large"), ("gsm8k small", "gsm8k large")
_COUNTED = ("counted small", "counted large")
_MEMORY = ("yardstick_mb", "bare_mb")


def rows(figures: Mapping[str, float]) -> list[RowOfGate]:
    """Return all rows; `figures` have the names of the scorers."""
    made = [
        RowOfGate(
            name=f"CPU of a further sample, GSM8K, {GSM8K[0]} to {GSM8K[1]}",
            unit="ms",
            value=_slope("gsm8k", GSM8K, "cpu_s"),
            subjects=_OF_GSM8K,
        ),
        RowOfGate(
            name=f"CPU of a further sample, sums, {_SMALL} to {_LARGE}",
            unit="ms",
            value=_slope("sums", SUMS, "cpu_s"),
            subjects=_OF_SUMS,
        ),
        RowOfGate(
            name="sleeps of 1000 further samples, sums",
            unit="times",
            value=_slope("sums", SUMS, "sleeps"),
            subjects=_OF_SUMS,
            units=None,
            slack=400.0,
        ),
        RowOfGate(
            name="calls of functions for 1000 further samples, sums",
            unit="calls",
            value=_slope("sums", COUNTED, "calls"),
            subjects=_COUNTED,
            units=None,
        ),
        RowOfGate(
            name="memory of a further sample, sums",
            unit="bytes",
            value=_growth,
            subjects=_OF_SUMS,
            units=_MEMORY,
            slack=100.0,
        ),
        RowOfGate(
            name=f"peak memory of {_LARGE} sums",
            unit="MB",
            value=lambda figures: figures[f"sums_{_LARGE}_peak_mb"],
            subjects=_OF_SUMS,
            units=_MEMORY,
        ),
        RowOfGate(
            name="CPU before the first request",
            unit="s",
            value=lambda figures: figures["first_s"],
            subjects=("gsm8k small",),
        ),
        RowOfGate(
            name="CPU of --help",
            unit="s",
            value=lambda figures: figures["help_s"],
            subjects=("help",),
        ),
        RowOfGate(
            name=f"CPU of the page of {_LARGE} sums",
            unit="s",
            value=lambda figures: figures[f"sums_{_LARGE}_page_cpu_s"],
            subjects=_OF_SUMS,
        ),
        RowOfGate(
            name=f"size of the page of {_LARGE} sums",
            unit="bytes",
            value=lambda figures: figures[f"sums_{_LARGE}_page_bytes"],
            subjects=_OF_SUMS,
            units=None,
        ),
    ]
    made += [_opened(name) for name in figures if name.startswith("opened ")]
    return made + [_score(name) for name in figures if name.startswith("score_us ")]


def _opened(figure: str) -> RowOfGate:
    return RowOfGate(
        name=f"readings of {figure.removeprefix('opened ')} in a run",
        unit="times",
        value=lambda figures: figures[figure],
        subjects=_COUNTED,
        units=None,
        exact=True,
        slack=2.0 if figure.endswith(".json") else 0.0,
    )


def _score(figure: str) -> RowOfGate:
    return RowOfGate(
        name=f"a score by {figure.removeprefix('score_us ')}",
        unit="us",
        value=lambda figures: figures[figure],
        subjects=("scores",),
        slack=5.0,
    )
