"""Print which requests received codes of others, and how much the pass could see."""

from __future__ import annotations

from pathlib import Path

from rich.console import Console
from rich.text import Text

from serve_eval.evaluation.storage.file_names import CANARIES, CANARY_LOG
from serve_eval.report.layout import say, tell_rehearsal
from serve_eval.schema import CanaryLeak, CanaryResult

SHOWN = 5
"""Number of leaks that are printed."""
SURE = 0.95
"""Chance with which a share of exchanged answers is seen."""


def render(found: CanaryResult, out_dir: Path, console: Console) -> None:
    """Print the counts, then each leak, then the conclusion."""
    tell_rehearsal(found.rehearsal, console)
    say(console, f"model {found.model}, {found.base_url}")
    say(
        console,
        f"{found.requests} requests, up to {found.in_flight} in flight together: {found.answers}"
        f" answers, {found.failures} failures",
    )
    for line in (*_describe_power(found), _describe_cache(found)):
        say(console, line)
    for leak in found.leaks[:SHOWN]:
        for line in _describe_leak(leak):
            say(console, line)
    if len(found.leaks) > SHOWN:
        say(console, f"... and {len(found.leaks) - SHOWN} more in {out_dir / CANARIES}")
    _conclude(found, console)
    say(console, f"result: {out_dir / CANARIES}; every reply: {out_dir / CANARY_LOG}")


def _describe_power(found: CanaryResult) -> list[str]:
    """Return how many answers could show a leak of whole answers."""
    said = f"{found.own} of {found.answers} answers repeat their own code"
    if not found.own:
        return [
            f"{said}:",
            "an exchange of whole answers was not tested, only codes that the server itself",
            "puts into texts, thoughts, tool calls and errors",
        ]
    # Answers are exchanged in pairs, so two of them are one chance to see it.
    share = 1.0 - (1.0 - SURE) ** (2.0 / found.own)
    return [
        said,
        f"an exchange of {share:.1%} of the answers or more would show with a chance of {SURE:.0%}",
    ]


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
        f"{leak.into} received the code of {leak.source}: {leak.where}, {own};",
        f"   {times}: {leak.quote!r}",
    ]
    if any(leak.servers):
        source, into = (name or "not named" for name in leak.servers)
        lines.append(f"   servers: {into} ({leak.into}), {source} ({leak.source})")
    return lines


def _conclude(found: CanaryResult, console: Console) -> None:
    if found.leaks:
        told = (
            f"LEAK: {found.leaking} of {found.requests} requests received codes of other requests"
        )
        console.print(Text(told, style="bold red"), soft_wrap=True)
        for line in (
            f"A breach of privacy, whatever the accuracy. Chance: below {found.chance:.0e}, and no",
            "prompt has two codes. The server, or a proxy or cache in front of it, mixes",
            "requests up. Take it out of service; then try the server without the proxy.",
        ):
            say(console, line)
    elif found.rehearsal:
        console.print(Text("rehearsal: nothing was judged", style="bold yellow"))
    elif not found.answers:
        console.print(Text("no answers: nothing was tested", style="bold yellow"))
    elif not found.own:
        console.print(Text("no leak found, and little was tested", style="bold yellow"))
    else:
        console.print(Text("no leak found", style="bold green"))
    if (one := found.suspicion) is not None:
        told = (
            f"suspicion, no proof: {one.length} characters or more of {one.codes} codes are in"
            " replies to others,"
        )
        console.print(Text(told, style="bold yellow"), soft_wrap=True)
        say(
            console,
            f"such as of {one.source} in {one.into}; by chance {one.expected:.2g} codes"
            f" (p {one.p:.1g})",
        )
