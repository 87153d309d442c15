"""The kinds of RULER by their names, as in its synthetic.yaml."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Literal

from serve_eval.tasks._ruler.documents import make_questions
from serve_eval.tasks._ruler.frequencies import make_coded_words, make_common_words
from serve_eval.tasks._ruler.ingredients import HOTPOTQA, SQUAD
from serve_eval.tasks._ruler.kind import Kind
from serve_eval.tasks._ruler.needles import make_needles
from serve_eval.tasks._ruler.variables import make_variables

Haystack = Literal["noise", "essay"]

SAME_WITH_NOISE = "niah_single_2"
"""The kind that differs from niah_single_1 by the essays alone."""


def list_kinds(haystack: Haystack) -> Mapping[str, Kind]:
    """Return all kinds. Those with essays in RULER have this haystack."""
    return {
        "niah_single_1": make_needles("noise", "words", "numbers"),
        SAME_WITH_NOISE: make_needles(haystack, "words", "numbers"),
        "niah_single_3": make_needles(haystack, "words", "uuids"),
        "niah_multikey_1": make_needles(haystack, "words", "numbers", keys=4),
        "niah_multikey_2": make_needles("needle", "words", "numbers"),
        "niah_multikey_3": make_needles("needle", "uuids", "uuids"),
        "niah_multivalue": make_needles(haystack, "words", "numbers", values=4),
        "niah_multiquery": make_needles(haystack, "words", "numbers", queries=4),
        "vt": make_variables(),
        "cwe": make_common_words(),
        "fwe": make_coded_words(),
        "qa_1": make_questions(SQUAD, least=1),
        "qa_2": make_questions(HOTPOTQA, least=10),
    }
