"""A picture of a page: an SVG with its description, and bars that show the same without one."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class Bar:
    """One bar of a picture that is drawn without SVG.

    `share` is its length from 0 to 1, `text` its value in words, and `mark` the place of a mark
    such as the reference, from 0 to 1.
    """

    label: str
    share: float
    text: str
    mark: float | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Picture:
    """A picture with its title and its description for screen readers.

    `svg` names colours only as CSS variables, so that it serves the light and the dark page (None:
    the drawing library is not installed). `bars` then show the same.
    """

    title: str
    description: str
    svg: str | None
    bars: Sequence[Bar] = ()
