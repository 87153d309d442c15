"""Print which requests received codes of others, and how much the pass could see."""

from __future__ import annotations

from pathlib import Path

from rich.console import Console
from rich.text import Text

from serve_eval.evaluation.storage.file_names import CANARIES, CANARY_LOG
from serve_eval.report.layout import say
from serve_eval.report.text import clean
from serve_eval.schema import CanaryLeak, CanaryResult

SHOWN = 5
"""Number of leaks that are printed."""
SURE = 0.95
"""Chance with which a share of exchanged answers is seen."""


def render(found: CanaryResult, out_dir: Path, console: Console) -> None:
    """Print the counts, then each leak, then the conclusion."""
    say(console, f"model {found.model}, {found.base_url}")
    say(
        console,
        f"{found.requests} requests, up to {found.in_flight} in flight together: {found.answers}"
        f" answers, {found.failures} failures",
    )
    for line in (_describe_power(found), _describe_kinds(found), _describe_cache(found)):
        say(console, line)
    for leak in found.leaks[:SHOWN]:
        for line in _describe_leak(leak):
            say(console, line)
    if len(found.leaks) > SHOWN:
        say(console, f"... and {len(found.leaks) - SHOWN} more in {out_dir / CANARIES}")
    _conclude(found, console)
    say(console, f"result: {out_dir / CANARIES}; every reply: {out_dir / CANARY_LOG}")


def _describe_power(found: CanaryResult) -> str:
    """Return how many answers could show a leak of whole answers."""
    said = f"{found.own} of {found.answers} answers repeat their own code: "
    if not found.own:
        return (
            f"{said}this model copies no code, so an exchange of whole answers was not tested;"
            " other requests' codes were searched in texts, thoughts, tool calls and errors"
        )
    share = 1.0 - (1.0 - SURE) ** (1.0 / found.own)
    return (
        f"{said}if {share:.1%} of the answers or more went to other requests, this pass would show"
        f" it with a chance of {SURE:.0%}"
    )


def _describe_kinds(found: CanaryResult) -> str:
    counts = ", ".join(f"{kind} {own} of {of}" for kind, (of, own) in found.by_kind.items())
    return f"own code by form of prompt: {counts}"


def _describe_cache(found: CanaryResult) -> str:
    if found.cached_tokens is None:
        return (
            f"prefix cache: not known how many of {found.prompt_tokens:,} prompt tokens came from"
            " it"
        )
    return (
        f"prefix cache: {found.cached_tokens:,} of {found.prompt_tokens:,} prompt tokens came from"
        " it"
    )


def _describe_leak(leak: CanaryLeak) -> list[str]:
    times = (
        f"in flight together for {leak.together_s:.2f} s"
        if leak.together_s >= 0.0
        else f"{leak.source} had ended {-leak.together_s:.2f} s before"
    )
    own = "with its own code" if leak.own else "without its own code"
    lines = [
        f"{leak.into} received the code of {leak.source}: {leak.where}, {own}; {times}",
        f"   {leak.quote!r}",
    ]
    if any(leak.servers):
        source, into = (name or "not named" for name in leak.servers)
        lines.append(f"   servers: {source} ({leak.source}), {into} ({leak.into})")
    return lines


def _conclude(found: CanaryResult, console: Console) -> None:
    if found.leaks:
        told = (
            f"LEAK: {found.leaking} of {found.requests} requests received codes of other requests"
            f" (by chance: {found.chance:.0e})"
        )
        console.print(Text(clean(told), style="bold red"), soft_wrap=True)
        say(
            console,
            "A breach of privacy, whatever the accuracy: data of one request reaches another. No"
            " prompt has two codes, so the server, or a proxy or cache in front of it, mixes"
            " requests up. Take it out of service, and send the same requests to the server"
            " without what is in front of it.",
        )
    elif not found.answers:
        console.print(Text("no answers: nothing was tested", style="bold yellow"))
    else:
        console.print(Text("no leak found", style="bold green" if found.own else "bold yellow"))
    if (one := found.suspicion) is not None:
        told = (
            f"suspicion, no proof: {one.length} or more characters in a row of {one.codes} codes"
            f" are in replies to other requests, such as of {one.source} in {one.into}; by chance"
            f" {one.expected:.2g} codes (p {one.p:.1g})"
        )
        console.print(Text(clean(told), style="bold yellow"), soft_wrap=True)
