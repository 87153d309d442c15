"""List the phrases that read as translated, each with what the field writes instead."""

from __future__ import annotations

import re

LISTED = {
    r"(?:was|were|is|are|be|been) had": "has, got; `finished answers are kept`",
    r"had is kept": "`finished answers are kept`",
    r"(?:is|are|was|were|be) told": "receives, reports, prints",
    r"nothing tells": "the response does not say",
    r"tells of": "reports",
    r"lets? (?:others |them |it )?wait": "is slow, blocks",
    r"so many": "that number of, the share",
    r"so much": "the amount, the size",
    r"beside": "next to, compared with",
    r"besides": "also, except",
    r"anew": "again, new",
    r"whoever": "the process that, the user who",
    r"otherwise than": "different from, unlike",
    r"for ever": "forever, without a limit",
    r"may be \w+ no more": "counts towards the limit",
    r"no more (?:is|are|was|were)": "no longer",
    r"as good as": "almost",
    r"all the same": "still, nevertheless",
    r"is no good": "is not usable",
    r"(?:is|are) waited for": "waits for",
    r"(?:is|are) looked at": "checks, reads",
    r"(?:is|are) meant": "means, applies to",
    r"front door": "orchestrator, front end",
    r"behind (?:one|the|a) door": "behind an endpoint",
    r"(?:behind|through|at|of) the door": "endpoint",
    r"where that is known": "if known",
    r"of one's own": "your own",
    r"than there was": "than before",
    r"by what": "how much, the share",
    r"in the way of": "like, as",
    r"is there no": "there is no",
    r"not but": "only",
    r"nothing but": "only",
    r"somebody": "someone; name the user or the process",
}
"""From a phrase (a regular expression between word boundaries) to plainer words."""

PHRASES = re.compile(r"\b(?:" + "|".join(LISTED) + r")\b", re.IGNORECASE)

QUESTION_WORDS = frozenset(
    ("what", "which", "whether", "where", "who", "whose", "whom", "when", "how", "why")
)
