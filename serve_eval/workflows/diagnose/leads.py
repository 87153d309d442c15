"""The words and rows that lead to the cause of a red result.

They are apart from the rules that find them, which a result that is not red does not import.
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
