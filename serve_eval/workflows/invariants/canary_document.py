"""Make the document of a search for leaks between requests. Pure."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from serve_eval.report.document import Block, Conclusion, Depth, Document, Statement
from serve_eval.report.page.content import DataCell, DataColumn, DataTable
from serve_eval.schema import CanaryLeak, CanaryResult
from serve_eval.storage.file_names import CANARY_LOG
from serve_eval.storage.story_files import CANARIES

SHOWN = 5
"""Number of leaks that are shown."""
SURE = 0.95
"""Chance with which a share of exchanged answers is seen."""


def make_document(found: CanaryResult, out_dir: Path) -> Document:
    """Return the document of a search: the leaks, and how much it could see."""
    conclusion = Conclusion(
        "canaries",
        _name_outcome(found),
        figures=_conclude(found),
        counts=f"{found.requests:,} requests, up to {found.in_flight} in flight together,"
        f" {found.failures:,} without an answer",
        cause=_explain(found),
        statements=[*_describe_leaks(found, out_dir), *_describe_power(found)],
    )
    return Document(
        "invariants",
        f"serve-eval check invariants --canaries {found.base_url}",
        found,
        conclusions=[conclusion],
        endpoint=found.base_url,
        statements=list(_describe_rest(found, out_dir)),
        blocks=[_tabulate(found)],
        result=out_dir / CANARIES.result,
    )


def _name_outcome(found: CanaryResult) -> str:
    if found.leaks:
        return "FAIL"
    if not found.answers:
        return "ERROR"
    return "PASS" if found.own and not found.rehearsal else "INCONCLUSIVE"


def _conclude(found: CanaryResult) -> str:
    """Return the number of requests with codes of others, or how many could have shown one."""
    if found.leaks:
        return f"{found.leaking} of {found.requests} requests received codes of other requests"
    if not found.answers:
        return "no answer: nothing was tested"
    if found.rehearsal:
        return "nothing was judged"
    return f"no leak found; {_count_own(found)}"


def _count_own(found: CanaryResult) -> str:
    return f"{found.own} of {found.answers} answers repeat their own code"


def _explain(found: CanaryResult) -> str:
    """Return the meaning of a leak, or why little was tested."""
    if found.leaks:
        return (
            f"a breach of privacy, whatever the accuracy; chance: below {found.chance:.0e}, and no"
            " prompt has two codes"
        )
    if found.answers and not found.own:
        return (
            "an exchange of whole answers was not tested, only codes that the server itself puts"
            " into texts, thoughts, tool calls and errors"
        )
    return ""


def _describe_leaks(found: CanaryResult, out_dir: Path) -> Iterator[Statement]:
    """Yield where to look, the first leaks, of which the first screen has one, and a suspicion."""
    if found.leaks:
        text = (
            "the server, or a proxy or cache in front of it, mixes requests up. Take it out of"
            " service; then try the server without the proxy"
        )
        yield Statement("look at", text)
    for i, leak in enumerate(found.leaks[:SHOWN]):
        depth = Depth.MORE if i else Depth.FIRST
        yield Statement("leak", _describe_leak(leak), depth=depth, state="fail")
    if (left := len(found.leaks) - SHOWN) > 0:
        yield Statement("", f"and {left} more in {out_dir / CANARIES.result}", depth=Depth.MORE)
    if (one := found.suspicion) is not None:
        text = (
            f"suspicion, no proof: {one.length} characters or more of {one.codes} codes are in"
            f" replies to others, such as of {one.source} in {one.into}; by chance"
            f" {one.expected:.2g} codes (p {one.p:.1g})"
        )
        yield Statement("suspect", text, state="warn")


def _describe_leak(leak: CanaryLeak) -> str:
    times = (
        f"in flight together for {leak.together_s:.2f} s"
        if leak.together_s >= 0.0
        else f"{leak.source} had ended {-leak.together_s:.2f} s before"
    )
    own = "with its own code" if leak.own else "without its own code"
    servers = ""
    if any(leak.servers):
        source, into = (name or "not named" for name in leak.servers)
        servers = f"; servers: {into} ({leak.into}), {source} ({leak.source})"
    return (
        f"{leak.into} received the code of {leak.source}: {leak.where}, {own}; {times}:"
        f" {leak.quote!r}{servers}"
    )


def _describe_power(found: CanaryResult) -> Iterator[Statement]:
    """Yield how many answers could show a leak of whole answers."""
    if found.leaks or not found.own:
        yield Statement("own", _count_own(found), depth=Depth.MORE)
    if found.own:
        # Answers are exchanged in pairs, so two of them are one chance to see it.
        share = 1.0 - (1.0 - SURE) ** (2.0 / found.own)
        text = (
            f"an exchange of {share:.1%} of the answers or more would show with a chance of"
            f" {SURE:.0%}"
        )
        yield Statement("power", text, depth=Depth.MORE if found.leaks else Depth.FIRST)


def _describe_rest(found: CanaryResult, out_dir: Path) -> Iterator[Statement]:
    """Yield the use of the prefix cache, and where every reply is."""
    of = f"of {found.prompt_tokens:,} prompt tokens came from it"
    known = found.cached_tokens
    text = f"not known how many {of}" if known is None else f"{known:,} {of}"
    yield Statement("cache", f"prefix cache: {text}", depth=Depth.MORE)
    yield Statement("replies", str(out_dir / CANARY_LOG), depth=Depth.MORE)


def _tabulate(found: CanaryResult) -> Block:
    """Return the table of the forms of prompts."""
    names = ("form of the prompt", "answers", "with their own code")
    table = DataTable(
        "Forms of prompts",
        columns=[DataColumn(name, number=i > 0) for i, name in enumerate(names)],
        rows=[
            [DataCell(kind), *(DataCell(str(n), order=float(n)) for n in counts)]
            for kind, counts in found.by_kind.items()
        ],
        caption="only an answer with its own code could show an exchange of whole answers",
    )
    return Block(table)
