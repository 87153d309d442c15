"""Draw groups of values as dots at their medians, with lines for quartiles, p5 and p95."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from serve_eval.report.pictures.distribution import quantile
from serve_eval.report.pictures.labels import count, list_some, shorten, shorten_all
from serve_eval.report.pictures.outcomes import COLOURS, group_outcome
from serve_eval.report.pictures.picture import Picture, RulerRow, make_ruler
from serve_eval.report.pictures.vega import FIRST, INK, WIDTH, axis, data

MOST_GROUPS = 60
_ENDS = {"p5": 0.05, "p25": 0.25, "p50": 0.5, "p75": 0.75, "p95": 0.95}


def draw_boxes(
    title: str,
    groups: Mapping[str, Sequence[float]],
    unit: str,
    colours: Mapping[str, str] | None = None,
) -> Picture | None:
    """Return the picture of the groups that have values, in their order; None without one."""
    known = {name: sorted(values) for name, values in groups.items() if len(values)}
    if not known:
        return None
    shown = list(known.items())[:MOST_GROUPS]
    names = shorten_all([name for name, _ in shown])
    title = shorten(title, 100)
    rows, said, ruled = [], [], []
    for name, (whole, values) in zip(names, shown, strict=True):
        ends = {key: quantile(values, q) for key, q in _ENDS.items()}
        label = f"{name} ({len(values):,})"
        rows.append({"name": label, "colour": (colours or {}).get(whole, FIRST), **ends})
        ruled.append(
            RulerRow(
                label=label,
                text=f"median {ends['p50']:,.4g} {unit}, middle half {ends['p25']:,.4g} to"
                f" {ends['p75']:,.4g}",
                value=ends["p50"],
                interval=(ends["p25"], ends["p75"]),
            )
        )
        said.append(
            f"{name}: {count(len(values), 'value')}, median {ends['p50']:,.4g},"
            f" middle half {ends['p25']:,.4g} to {ends['p75']:,.4g}"
        )
    more = f" {len(shown)} of {len(known):,} groups are drawn." if len(known) > len(shown) else ""
    description = f"{title} in {unit}: {list_some(said)}.{more}"
    ruler = make_ruler(ruled)
    return Picture(title=title, description=description, spec=_spec(rows, unit), ruler=ruler)


def draw_lengths(task: str, lengths: Sequence[tuple[str, int]], unit: str) -> Picture | None:
    """Return the picture of answer lengths by outcome, from pairs of an outcome and a length."""
    groups: dict[str, list[float]] = {name: [] for name in COLOURS}
    for outcome, length in lengths:
        groups[group_outcome(outcome)].append(float(length))
    return draw_boxes(f"{shorten(task)}: length of answers by outcome", groups, unit, COLOURS)


def _spec(rows: Sequence[Mapping[str, object]], unit: str) -> dict[str, object]:
    y = {"field": "name", "type": "nominal", "sort": None, "title": None}
    # The colour is a column of the data, so that no scale maps it.
    colour = {"field": "colour", "type": "nominal", "scale": None}
    return {
        "width": WIDTH,
        "height": {"step": 24},
        "autosize": {"type": "fit-x", "contains": "padding"},
        "data": data(rows),
        "encoding": {"y": y},
        "layer": [
            {
                "mark": {"type": "rule", "strokeWidth": 1.5},
                "encoding": {"x": axis("p5", unit), "x2": {"field": "p95"}, "color": colour},
            },
            {
                "mark": {"type": "rule", "strokeWidth": 7, "opacity": 0.75},
                "encoding": {"x": axis("p25", unit), "x2": {"field": "p75"}, "color": colour},
            },
            {
                "mark": {"type": "point", "size": 70, "color": INK},
                "encoding": {"x": axis("p50", unit)},
            },
        ],
    }
