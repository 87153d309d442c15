"""Make the page of a verification."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Final

from serve_eval import __version__
from serve_eval.report.page.content import (
    DataCell,
    DataColumn,
    DataTable,
    Fact,
    PageContent,
    PictureSection,
    Section,
    State,
    TextLines,
)
from serve_eval.report.pictures import draw_distribution
from serve_eval.report.summary import join_row
from serve_eval.schema import REHEARSED, Verification, VerificationOutcome, VerifiedSide
from serve_eval.workflows.verify.text import (
    COLUMNS,
    describe_cost,
    describe_limits,
    find_worst,
    list_cells,
    list_commands,
    list_rows,
    summarise,
)

_STATES: Final[Mapping[str, State]] = {
    VerificationOutcome.ANOTHER: "fail",
    VerificationOutcome.FAULT: "fail",
    VerificationOutcome.OTHER_DEFAULTS: "fail",
    VerificationOutcome.UNDECIDED: "warn",
    VerificationOutcome.OTHER_NUMERICS: "pass",
    VerificationOutcome.IDENTICAL: "pass",
}
"""The outcomes, the worst first."""
MOST_DRAWN = 8


def make_verify_page(found: Verification, addresses: Mapping[str, str]) -> PageContent:
    """Return the page of a verification. `addresses` are those of the servers, by name."""
    wholes = [side for side in found.sides if side.part_of is None]
    worst = find_worst(found, wholes)
    if len(wholes) == 1:
        headline = f"{wholes[0].name} against {found.reference}"
        rows = [Fact(label=label, text=text) for label, text in list_rows(found, wholes[0])]
    else:
        headline = summarise(found, wholes)
        rows = [Fact(label="limits", text=describe_limits(found))]
    rows += [Fact(label="not verified", text=f"{one.name}: {one.why}") for one in found.lost]
    rows += [Fact(label="named", text=line, state="fail") for line in found.named]
    rows += [Fact(label="warning", text=line, state="warn") for line in found.warnings]
    rows += [Fact(label=label, text=text) for label, text in describe_cost(found)]
    rows += [Fact(label="next", text=command) for command in list_commands(found, addresses)]
    return PageContent(
        notice=REHEARSED if found.rehearsal else "",
        kind="verify",
        title=f"verify: {worst}",
        heading=headline if len(wholes) == 1 else f"{len(wholes)} servers",
        state=_STATES[worst],
        badge=str(worst),
        headline=headline,
        rows=rows,
        sections=tuple(_list_sections(found)),
        foot=f"serve-eval {__version__}, {found.started_at}",
    )


def _list_sections(found: Verification) -> Iterator[Section]:
    order = list(_STATES)
    sides = sorted(found.sides, key=lambda one: (order.index(one.outcome), -one.median))
    rows = [_row(side) for side in sides]
    columns = [DataColumn(name=name, number=0 < i < 5) for i, name in enumerate(COLUMNS)]
    yield DataTable(title="Servers", columns=columns, rows=rows, caption="The worst first.")
    levels = {"noise": found.noise, **({} if found.floor is None else {"floor": found.floor})}
    pictures = [
        drawn
        for side in sides[:MOST_DRAWN]
        if (
            drawn := draw_distribution(
                f"{side.name}: distances of its answers",
                {side.name: [one.nats for one in side.distances]},
                "nat",
                levels,
            )
        )
        is not None
    ]
    if pictures:
        yield PictureSection(title="Distances from the reference", pictures=pictures)
    if len(sides) > 1:
        for side in sides:
            lines = [*map(join_row, list_rows(found, side)), *side.prompts]
            yield TextLines(title=side.name, lines=lines, closed=True)


def _row(side: VerifiedSide) -> list[DataCell]:
    cells = [DataCell(text=cell.plain) for cell in list_cells(side)]
    return [*cells[:-1], DataCell(text=cells[-1].text, state=_STATES[side.outcome])]
