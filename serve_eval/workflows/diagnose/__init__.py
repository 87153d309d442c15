"""Rules that explain from its run folder why a run failed or is undecided.

Each finding comes with its evidence and the option to change.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple


class Leads(NamedTuple):
    """The likeliest cause by task, and where score was lost if that is one slice of the samples.

    `places` are sentences, each behind the name of its task.
    """

    causes: Mapping[str, str] = {}
    places: tuple[str, ...] = ()
