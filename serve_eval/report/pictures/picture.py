"""A picture of a page: an SVG if the extra `page` is installed, and bars for a page without it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class Bar:
    """One bar: its label, its length as a share from 0 to 1, and the text behind it.

    `mark` is the place of a line across the bar, such as a threshold (None: there is no line).
    """

    label: str
    share: float
    text: str
    mark: float | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Picture:
    """A picture with a title and, for screen readers, a description that has its figures.

    The colours of `svg` are CSS variables, so that one SVG serves light and dark pages. It is None
    without the extra `page`; `bars` then show the most important figures.
    """

    title: str
    description: str
    svg: str | None
    bars: Sequence[Bar]
