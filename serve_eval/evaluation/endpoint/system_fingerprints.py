"""Name the configurations that answered, by the system_fingerprint in their answers.

vLLM's names its version and a hash of its configuration, so that unlike servers behind one address
have unlike ones. Hosted models change theirs without notice: several are stated, not accused.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from datetime import UTC, datetime
from itertools import pairwise

from serve_eval.schema import AnswerSpan, Traffic

Spans = Mapping[str, AnswerSpan]


def merge_spans(traffics: Iterable[Traffic]) -> Spans:
    """Return the answers of several tasks by fingerprint, in the order of their beginnings."""
    found: dict[str, AnswerSpan] = {}
    for traffic in traffics:
        for name, one in traffic.system_fingerprints.items():
            other = found.get(name, one)
            found[name] = AnswerSpan(
                answers=one.answers + (other.answers if name in found else 0),
                first_s=min(one.first_s, other.first_s),
                last_s=max(one.last_s, other.last_s),
            )
    return dict(sorted(found.items(), key=lambda item: item[1].first_s))


def remarks(spans: Spans, addresses: Sequence[str]) -> list[str]:
    """Return a warning if the answers carry several fingerprints; `addresses` are the sessions'.

    Fingerprints one after the other at several addresses are expected, and another remark names the
    addresses.
    """
    if len(spans) < 2:
        return []
    replaced = all(a.last_s <= b.first_s for a, b in pairwise(spans.values()))
    if not replaced:
        each = ", ".join(f"{name} ({one.answers} answers)" for name, one in spans.items())
        return [
            f"the answers carry {len(spans)} system_fingerprints, mixed from"
            f" {_time(sorted(one.first_s for one in spans.values())[1])} on: {each}: servers of"
            " different configurations answer at one address"
        ]
    if len(set(addresses)) > 1:
        return []
    first, *later = spans.items()
    parts = [f"{first[0]} ({first[1].answers} answers)"]
    parts += [f"from {_time(one.first_s)} on {name} ({one.answers} answers)" for name, one in later]
    return [
        f"the answers carry {len(spans)} system_fingerprints, one after the other:"
        f" {', '.join(parts)}: the server was replaced, or its configuration changed, during the"
        " run"
    ]


def _time(seconds: float) -> str:
    return f"{datetime.fromtimestamp(seconds, UTC):%H:%M:%S} UTC"
