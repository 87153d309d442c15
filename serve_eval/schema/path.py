"""The proof that the path which a deployment promises was used: what is claimed, and what showed.

A path is the way in which a deployment makes its answers: with a transfer of the KV cache, with
speculation, with a prefix cache, always in the same way.
"""

from __future__ import annotations

from enum import StrEnum
from typing import Literal

from msgspec import Struct


class PathClaim(StrEnum):
    """A part of the path that a plan or a launcher can promise.

    KV_TRANSFER: context servers process the prompts, and generation servers take over their KV
    cache. PREFIX_CACHE: tokens of prompts come from a prefix cache. SPECULATION: drafts become part
    of answers. DETERMINISTIC: the same prompt gets the same answer.
    """

    KV_TRANSFER = "kv_transfer"
    PREFIX_CACHE = "prefix_cache"
    SPECULATION = "speculation"
    DETERMINISTIC = "deterministic"


class ProofState(StrEnum):
    """The state of a claim. UNKNOWN: it does not show from outside."""

    PROVEN = "proven"
    REFUTED = "refuted"
    UNKNOWN = "unknown"


PathPromiser = Literal["plan", "launcher"]
"""The one who promises a part of a path: the plan, by name, or the launcher that starts it."""
NOT_PROVEN = "path not proven"
"""First words of the reason of a verdict whose path is not proven."""


class PathFinding(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """The finding about one claim.

    `evidence` is what showed, and `hint` says what would show more. `expected_by` is None for what
    nobody expects.
    """

    claim: PathClaim
    state: ProofState
    evidence: str
    hint: str = ""
    expected_by: PathPromiser | None = None

    @property
    def blocks(self) -> bool:
        """True if the path is not proven, so that the run has no verdict on what was deployed.

        A launcher's own expectation whose state is unknown does not block.
        """
        if self.expected_by is None or self.state is ProofState.PROVEN:
            return False
        return self.state is ProofState.REFUTED or self.expected_by == "plan"

    @property
    def reason(self) -> str:
        """The reason that a verdict gets."""
        told = f"{NOT_PROVEN}: {self.claim}: "
        if self.state is ProofState.REFUTED:
            return told + self.evidence
        return f"{told}does not show from outside: {self.evidence}. {self.hint}"


class RepeatedAnswers(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A comparison of answers to the same prompts, each asked again.

    `differ` of the `prompts` did not get the same answer each time; `example` is one of them.
    `failed` questions had no answer.
    """

    prompts: int
    differ: int
    failed: int = 0
    example: str = ""
