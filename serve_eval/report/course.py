"""Draw the course of a degrading run as SVG for the page, without a library."""

from __future__ import annotations

from collections.abc import Sequence
from html import escape

from serve_eval.evaluation.results.degradation import what
from serve_eval.schema import Degradation

WIDTH, HEIGHT = 900, 275
LEFT, RIGHT, TOP, BOTTOM = 60, 20, 45, 45
_BY_START, _BY_END, _ONSET = "var(--series-1)", "var(--faint)", "var(--bad)"


def picture(task: str, one: Degradation) -> str:
    """Return an SVG of the running share of bad answers, in the order of starts.

    A line marks the request from which the run is worse. A faint curve shows the share in the order
    of ends. The result is empty for a report of a version that stored no course.
    """
    course = one.course
    if course is None or not course.at:
        return ""
    highest = max(*course.by_start, *course.by_end, 0.01)

    def place(request: float, share: float) -> tuple[float, float]:
        x = LEFT + (WIDTH - LEFT - RIGHT) * request / one.of
        return x, HEIGHT - BOTTOM - (HEIGHT - TOP - BOTTOM) * share / highest

    def curve(shares: Sequence[float], colour: str, more: str) -> str:
        points = " ".join(
            "{:.1f},{:.1f}".format(*place(at, share))
            for at, share in zip(course.at, shares, strict=True)
        )
        return f'<polyline points="{points}" fill="none" stroke="{colour}" {more}/>'

    def text(
        across: float, down: float, words: str, colour: str = "currentColor", anchor: str = "middle"
    ) -> str:
        return (
            f'<text x="{across:.1f}" y="{down:.1f}" fill="{colour}"'
            f' text-anchor="{anchor}">{escape(words)}</text>'
        )

    onset, _ = place(one.since, 0.0)
    noticed, _ = place(one.noticed, 0.0)
    bottom, right = HEIGHT - BOTTOM, WIDTH - RIGHT
    requests = "counted requests" if one.counted else "requests"
    title = f"{task}: {what(one)} among the latest {course.window} {requests}"
    label = f"degrading from request {one.since} on (dashed: noticed)"
    late = onset > WIDTH * 0.6
    parts = [
        (
            f'<svg viewBox="0 0 {WIDTH} {HEIGHT}" width="{WIDTH}" role="img"'
            f' aria-label="{escape(title, quote=True)}" font-family="sans-serif" font-size="12">'
        ),
        text(LEFT, 16, title, anchor="start"),
        text(onset, TOP - 8, label, _ONSET, "end" if late else "start"),
        f'<path d="M{LEFT},{TOP} V{bottom} H{right}" fill="none" stroke="currentColor"/>',
        *(
            text(LEFT - 6, place(0, share)[1] + 4, f"{share:.0%}", anchor="end")
            for share in (0.0, highest / 2, highest)
        ),
        *(text(place(at, 0)[0], bottom + 16, str(at)) for at in sorted({1, one.of // 2, one.of})),
        text(
            (LEFT + right) / 2,
            HEIGHT - 8,
            "requests in the order of their starts (faint: in the order of their ends)",
        ),
        curve(course.by_end, _BY_END, 'stroke-width="1" opacity="0.6"'),
        curve(course.by_start, _BY_START, 'stroke-width="2"'),
        f'<path d="M{onset:.1f},{TOP} V{bottom}" stroke="{_ONSET}" stroke-width="2"/>',
        f'<path d="M{noticed:.1f},{TOP} V{bottom}" stroke="{_ONSET}" stroke-dasharray="4 4"/>',
        "</svg>",
    ]
    return "\n".join(parts)
