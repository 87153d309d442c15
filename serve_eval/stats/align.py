"""Pairing by prompt: which candidate answer belongs to which stored reference answer."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

from serve_eval.errors import ServeEvalError

SHOWN = 3


def align(reference_ids: Sequence[str], candidate_ids: Sequence[str]) -> list[int]:
    """Position in the candidate of each reference prompt, in the reference's order.

    A paired test is only valid on one and the same set of prompts, so nothing is matched silently in part: raises
    ServeEvalError when an id occurs twice on one side or stands on one side only. A prompt whose answer is missing
    keeps its id and gets the score NaN.
    """
    for side, ids in (("reference", reference_ids), ("candidate", candidate_ids)):
        twice = [name for name, count in Counter(ids).items() if count > 1]
        if twice:
            raise ServeEvalError(
                f"{len(twice)} prompt ids occur more than once in the {side}: {_some(twice)}",
                hint="ids must be unique; average repeats of a prompt or give them as separate runs",
            )
    place = {name: position for position, name in enumerate(candidate_ids)}
    known = set(reference_ids)
    only_reference = [name for name in reference_ids if name not in place]
    only_candidate = [name for name in candidate_ids if name not in known]
    if only_reference or only_candidate:
        parts = [
            f"{len(names)} only in the {side}: {_some(names)}"
            for side, names in (("reference", only_reference), ("candidate", only_candidate))
            if names
        ]
        raise ServeEvalError(
            f"the reference and the candidate have different prompt sets ({'; '.join(parts)})",
            hint="evaluate the prompts that the reference was taken on, or register a new reference",
        )
    return [place[name] for name in reference_ids]


def _some(names: Sequence[str]) -> str:
    return ", ".join(names[:SHOWN]) + (", ..." if len(names) > SHOWN else "")
