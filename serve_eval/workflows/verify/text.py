"""Print the result of a verification."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from rich.console import Console
from rich.text import Text

from serve_eval.evaluation.probes.evidence import ALPHA, FAR_NATS
from serve_eval.report.layout import say
from serve_eval.schema import (
    Verification,
    VerificationOutcome,
    VerificationReference,
    VerifiedSide,
)
from serve_eval.workflows.verify.path import describe_path

CHUNK = 2048
"""Tokens of vLLM's default chunk of a prompt."""
_STYLES = {
    VerificationOutcome.IDENTICAL: "bold green",
    VerificationOutcome.OTHER_NUMERICS: "bold green",
    VerificationOutcome.ANOTHER: "bold red",
    VerificationOutcome.UNDECIDED: "bold yellow",
}


def render(found: Verification, files: list[Path], console: Console) -> None:
    """Print the outcome of each server, and the figures behind it."""
    for side in found.sides:
        console.print(Text(side.outcome.value, style=_STYLES[side.outcome]), end="  ")
        if side.part_of is None:
            say(console, f"{side.name} against {found.reference}")
            for line in (*_lines(found, side), *side.prompts):
                say(console, f"  {line}")
        else:
            say(console, f"{side.name}, {side.role}: {side.why}")
    for line in found.named:
        say(console, line)
    for line in found.warnings:
        say(console, f"warning: {line}")
    for line in _next(found):
        say(console, line)
    for file in files:
        say(console, f"written: {file}")


def _lines(found: Verification, side: VerifiedSide) -> Iterator[str]:
    yield side.why
    effect = "" if side.effect is None else f", {side.effect:.1f} times that of the sibling"
    yield f"median distance {side.median:.4f} nat{effect}"
    limits = f"noise {found.noise:.4f}"
    limits += "" if found.floor is None else f", floor {found.floor:.4f}"
    yield f"limits: {limits} nat"
    if side.outcome is VerificationOutcome.ANOTHER:
        yield f"p < {max(1 / side.evidence, 1e-12):.1g} (level {ALPHA}), looked at after each probe"
    if side.excluded_share is not None:
        yield (
            f"a fault in {side.excluded_share:.1%} of the requests or more would have been seen"
            f" ({1 - ALPHA:.0%})"
        )
    if side.far:
        again = [one for one in side.distances if one.repeats]
        same = sum(all(nats > (found.floor or 0.0) for nats in one.repeats) for one in again)
        yield (
            f"{side.far} probes are far away; {same} of {len(again)} were so again each time they"
            " were repeated"
        )
    if place := _place(side):
        yield place
    if length := _length(side):
        yield length
    yield from describe_path(side.engines)
    low, high = found.prompt_lengths
    cached = "" if side.cached_tokens is None else f", {side.cached_tokens:,} from the prefix cache"
    yield (
        f"asked {side.asked} probes of {low} to {high} tokens: {side.requests} requests,"
        f" {side.tokens:,} tokens{cached}"
    )


def _place(side: VerifiedSide) -> str:
    """Return which of the two tokens differs, if one clearly does."""
    if side.outcome is not VerificationOutcome.ANOTHER:
        return ""
    first = sum(one.token == 0 for one in side.distances if one.nats > 0)
    second = sum(one.token == 1 for one in side.distances if one.nats > 0)
    if first == 0 and second:
        return "only second tokens differ: on trtllm-serve, these read the transferred KV cache"
    return ""


def _length(side: VerifiedSide) -> str:
    """Return a line if only probes longer than a chunk are far away."""
    far = [one for one in side.distances if one.nats > FAR_NATS]
    if far and side.far and all(one.prompt_tokens > CHUNK for one in far):
        return (
            f"only the probe of {far[0].prompt_tokens:,} tokens is far away, and it is the only one"
            f" longer than {CHUNK:,}: a fault of long prompts, such as chunked prefill"
        )
    return ""


def _next(found: Verification) -> Iterator[str]:
    others = [
        one
        for one in found.sides
        if one.outcome is VerificationOutcome.ANOTHER and one.part_of is None
    ]
    if others:
        yield (
            "This says that the model is another one, not that it is worse. Measure that:"
            f" serve-eval compare {found.reference} {others[0].name}"
        )
    if any(one.outcome is VerificationOutcome.UNDECIDED for one in found.sides):
        yield "Undecided: name a sibling or a floor, or raise the budget with --probes."
    total = sum(one.requests for one in found.sides) + found.reference_requests
    yield f"{total} requests in {found.wall_s:.1f} s"


def render_reference(made: VerificationReference, file: Path, console: Console) -> None:
    """Print what a new reference holds, and how to use it."""
    say(console, f"reference of {made.model} at {made.source}: {len(made.probes)} probes")
    floor = "unknown: verify needs --floor, or a --sibling here" if made.floor is None else ""
    say(console, f"noise {made.noise:.4f} nat, floor {floor or f'{made.floor:.4f} nat'}")
    say(console, f"written: {file} ({file.stat().st_size / 1000:.0f} KB)")
    say(console, f"next: serve-eval verify HOST --reference {file}")
