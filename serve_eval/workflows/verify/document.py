"""Make the document of a verification: a conclusion for each server, the worst first. Pure."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Final

from serve_eval.evidence.probe_floor import FAR_NATS, TIMES, limits_of
from serve_eval.evidence.probe_judging import EVIDENCE_ALPHA, UNSOUND
from serve_eval.evidence.probe_sentences import FAULT_SHARE
from serve_eval.report.ci_result import CiCase, CiState, CiSuite
from serve_eval.report.document import (
    Block,
    Conclusion,
    Depth,
    Document,
    Statement,
    make_header,
    name_state,
    rank_outcome,
)
from serve_eval.report.page.content import DataCell, DataColumn, DataTable, PictureSection
from serve_eval.report.pictures import draw_distribution
from serve_eval.report.summary.figures import count, write_nats
from serve_eval.schema import (
    LostServer,
    Verification,
    VerificationOutcome,
    VerificationReference,
    VerifiedSide,
)
from serve_eval.shell_words import quote_path, quote_word
from serve_eval.storage.story_files import VERIFY
from serve_eval.verdicts.exit_code import PASS
from serve_eval.workflows.verify.fleet import MAJORITY, list_names
from serve_eval.workflows.verify.legs import describe_path
from serve_eval.workflows.verify.result import NAME_A_FLOOR, advise, warn_of_floor

CHUNK = 2048
"""Tokens of vLLM's default chunk of a prompt."""
MOST_DRAWN = 8
MEASURED = "word_problems"
"""The task that the next command measures: it needs no data set."""
_SHORT: Final = {
    VerificationOutcome.ANOTHER: "ANOTHER",
    VerificationOutcome.FAULT: "FAULT",
    VerificationOutcome.OTHER_DEFAULTS: "OTHER DEFAULTS",
}
_STATES: Final = {
    VerificationOutcome.IDENTICAL: CiState.PASSED,
    VerificationOutcome.OTHER_NUMERICS: CiState.PASSED,
    VerificationOutcome.ANOTHER: CiState.FAILURE,
    VerificationOutcome.FAULT: CiState.FAILURE,
    VerificationOutcome.OTHER_DEFAULTS: CiState.FAILURE,
    VerificationOutcome.UNDECIDED: CiState.SKIPPED,
}
_LOST = "ERROR"
_COLUMNS = ("outcome", "server", "probes", "beyond", "median", "p")
_CAPTION = "beyond: probes further away than the limit; median: distance of the probes in nats"


def make_document(
    found: Verification, out_dir: Path | None, addresses: Mapping[str, str], model: str = ""
) -> Document:
    """Return the document of a verification.

    `addresses` are those with which a further command reaches the servers, by name, and `model` is
    the name of their model if the user gave one.
    """
    conclusions = [
        *(_conclude(found, side) for side in found.sides),
        *map(_describe_lost, found.lost),
    ]
    document = Document(
        "verify",
        f"serve-eval verify against {found.reference}",
        found,
        conclusions=conclusions,
        noun="servers",
        overview=_tabulate(found) if len(conclusions) > 1 else None,
        statements=list(_describe_all(found, addresses)),
        blocks=_draw(found),
        warnings=found.warnings,
        commands=_list_commands(found, addresses, model),
        result=None if out_dir is None else out_dir / VERIFY.result,
    )
    return replace(document, suites=[_make_suite(found, document)])


def make_registered(
    made: VerificationReference, file: Path, address: str, model: str = ""
) -> Document:
    """Return the document of a new reference.

    `address` is the one with which a further command reaches its server, if there is one, and
    `model` the name that the user gave.
    """
    again = f"{quote_word(address)}{_name_model(model)} --reference {quote_path(file)}"
    count = max((len(probe.healthy) for probe in made.probes), default=0)
    siblings = f" of {count} siblings" if count > 1 else ""
    floor = "floor unknown: register it again with --sibling HOST, or give verify --floor NATS"
    if made.floor is not None:
        floor = f"floor {write_nats(made.floor)} nat{siblings}"
    conclusion = Conclusion(
        f"reference of {made.model} at {made.source}",
        "REGISTERED",
        counts=f"{len(made.probes)} probes",
        statements=[
            Statement("noise", f"{write_nats(made.noise)} nat, {floor}"),
            Statement("written", str(file)),
        ],
    )
    return Document(
        "verify",
        "serve-eval verify --register",
        make_header(PASS, started_at=made.made_at, model=made.model),
        conclusions=[conclusion],
        warnings=warn_of_floor(made),
        commands=[f"serve-eval verify {again}"] if address else [],
        suites=[
            CiSuite(
                "serve-eval verify",
                [CiCase("verify", "register", state=CiState.PASSED)],
            )
        ],
    )


def _conclude(found: Verification, side: VerifiedSide) -> Conclusion:
    """Return the conclusion about a server: how far its answers are from the reference's."""
    name = _name_part(side)
    if len(found.sides) + len(found.lost) == 1:
        name = f"{side.name} against {found.reference}"
    limit, kind = (found.noise, "noise") if found.floor is None else (found.floor, "floor")
    beyond = side.beyond_noise if found.floor is None else side.beyond_floor
    causes = [] if side.part_of is not None else list(found.named)
    why = side.why
    if side.outcome is VerificationOutcome.UNDECIDED and found.floor is None:
        why = ": ".join(filter(None, (why, NAME_A_FLOOR)))
    causes = [one for one in (*causes, *side.prompts, why) if one]
    if _STATES[side.outcome] is CiState.PASSED:
        causes = []
    low, high = found.prompt_lengths
    return Conclusion(
        name,
        side.outcome.value,
        figures=f"{beyond} of {side.asked} probes are beyond the {kind} of {write_nats(limit)} nat,"
        f" median distance {write_nats(side.median)} nat",
        counts=f"{side.asked} probes of {low} to {high} tokens, {side.unanswered} unanswered",
        cause=causes[0] if causes else "",
        statements=[
            *(Statement("why", line) for line in (causes if len(causes) > 1 else ())),
            *(
                Statement(label, line)
                for label, line in (("why", why), *(("prompts", x) for x in side.prompts))
                if line and line not in causes
            ),
            *_describe_figures(found, side),
        ],
    )


def _describe_figures(found: Verification, side: VerifiedSide) -> Iterator[Statement]:
    """Yield the figures behind the outcome of a server, those that decide first."""
    several = len(found.sides) + len(found.lost) > 1
    if side.outcome is VerificationOutcome.ANOTHER and not several:  # else the table has it
        yield Statement(
            "p", f"{_tell_p(side)} (level {EVIDENCE_ALPHA}), looked at after each probe"
        )
    if side.excluded_share is not None:
        yield Statement("sure", _tell_share(found, side))
    if side.needed is not None:
        yield Statement(
            "probes",
            f"answers of siblings are far away too, so a fault in {FAULT_SHARE:.0%} of the"
            f" requests shows in about {side.needed:,} probes (--probes {side.needed})",
        )
    yield from (Statement("fault", line) for line in _tell_fault(found, side))
    if side.compared:
        many = "the sibling" if found.siblings == 1 else "each sibling"
        text = (
            f"{side.further} of {side.compared} probes are more than {TIMES:.0f} times as far away"
            f" as {many}"
        )
        yield Statement("pairs", text, depth=Depth.MORE)
    effect = "" if side.effect is None else f", {side.effect:.1f} times that of the sibling"
    text = f"{write_nats(side.median)} nat in the median{effect}; limits: {_describe_limits(found)}"
    yield Statement("distance", text, depth=Depth.MORE)
    for line in describe_path(side.engines):
        yield Statement("path", line, depth=Depth.MORE)
    cached = "" if side.cached_tokens is None else f", {side.cached_tokens:,} from the prefix cache"
    text = f"{side.requests} requests, {side.tokens:,} tokens{cached}"
    yield Statement("cost", text, depth=Depth.MORE)


def _describe_limits(found: Verification) -> str:
    floor = "" if found.floor is None else f", floor {write_nats(found.floor)}"
    return f"noise {write_nats(found.noise)}{floor} nat"


def _tell_p(side: VerifiedSide) -> str:
    p = 1 / side.evidence if side.p_holm is None else side.p_holm
    return f"< {max(p, 1e-12):.1g}"


def _tell_share(found: Verification, side: VerifiedSide) -> str:
    """Return which faults a sound outcome excludes: their share, and their least distance."""
    limits = limits_of(found)
    identical = side.outcome is VerificationOutcome.IDENTICAL or found.floor is None
    least = limits.beyond_noise if identical else limits.beyond_floors
    return (
        f"a fault of more than {write_nats(least)} nat in {side.excluded_share:.1%} of the requests"
        f" or more would have been seen, with {1 - EVIDENCE_ALPHA:.0%} confidence"
    )


def _tell_fault(found: Verification, side: VerifiedSide) -> Iterator[str]:
    """Yield what is known about the kind of a fault."""
    if side.far:
        again = [one for one in side.distances if one.repeats]
        limits = limits_of(found)
        same = sum(min(one.repeats) > limits.far for one in again)
        yield (
            f"{count(side.far, 'probe')} {'is' if side.far == 1 else 'are'} far away; of"
            f" {len(again)} that were asked again, {same} stayed so each time"
        )
    moved = [one for one in side.distances if one.nats > 0]
    another = side.outcome is VerificationOutcome.ANOTHER
    if another and moved and all(one.token == 1 for one in moved):
        yield "only second tokens differ: on trtllm-serve, these read the transferred KV cache"
    far = [one for one in side.distances if one.nats > FAR_NATS]
    if far and side.far and all(one.prompt_tokens > CHUNK for one in far):
        yield (
            f"only the probe of {far[0].prompt_tokens:,} tokens is far away, and it is the only one"
            f" longer than {CHUNK:,}: a fault of long prompts, such as chunked prefill"
        )


def _describe_lost(one: LostServer) -> Conclusion:
    return Conclusion(one.name, _LOST, figures="not verified", cause=one.why)


def _describe_all(found: Verification, addresses: Mapping[str, str]) -> Iterator[Statement]:
    """Yield what concerns all servers: limits, groups, what to do, and the cost."""
    sound = [one for one in found.sides if _STATES[one.outcome] is CiState.PASSED]
    if len(found.sides) + len(found.lost) > 1:
        text = f"{found.reference}; limits: {_describe_limits(found)}"
        yield Statement("against", text)
        if shares := [one.excluded_share for one in sound if one.excluded_share is not None]:
            text = (
                f"on a server that passed, a fault in {max(shares):.1%} of the requests or more"
                f" would have been seen, with {1 - EVIDENCE_ALPHA:.0%} confidence for each"
            )
            yield Statement("sure", text)
    groups = [
        f"{len(one)} servers answer alike: {list_names(one)}"
        if len(one) > 1
        else f"one answers like no other: {one[0]}"
        for one in found.groups
    ]
    if groups:
        yield Statement("groups", "; ".join(groups))
    if any(one.outcome is VerificationOutcome.ANOTHER for one in found.sides):
        text = "this says that the model is another one, not that it is worse: measure that"
        yield Statement("note", text)
    if undecided := [one for one in found.sides if one.outcome is VerificationOutcome.UNDECIDED]:
        yield Statement("note", advise(found, undecided, addresses))
    requests = sum(one.requests for one in found.sides) + found.reference_requests
    tokens = sum(one.tokens for one in found.sides) + found.reference_tokens
    text = f"{requests:,} requests, {tokens:,} tokens, in {found.wall_s:.1f} s"
    yield Statement("run", text, depth=Depth.MORE)


def _list_commands(found: Verification, addresses: Mapping[str, str], model: str) -> list[str]:
    """Return the command that measures whether another model is worse, if both have an address."""
    others = [one.name for one in found.sides if one.outcome in UNSOUND and one.part_of is None]
    pair = [found.reference.removeprefix(MAJORITY), *others[:1]]
    if len(pair) < 2 or any(one not in addresses for one in pair):
        return []
    a, b = (quote_word(addresses[one]) for one in pair)
    return [f"serve-eval compare {a} {b}{_name_model(model)} --tasks {MEASURED}"]


def _name_model(model: str) -> str:
    return f" --model {quote_word(model)}" if model else ""


def _tabulate(found: Verification) -> DataTable:
    """Return a row for each server, the worst first, the farthest first among equals."""
    sides = sorted(found.sides, key=lambda one: (rank_outcome(one.outcome.value), -one.median))
    ranked = [(rank_outcome(one.outcome.value), _list_cells(found, one)) for one in sides]
    ranked += [
        (
            rank_outcome(_LOST),
            [DataCell(_LOST, state="fail"), _write(one.name), *map(_write, "----")],
        )
        for one in found.lost
    ]
    rows = [cells for _, cells in sorted(ranked, key=lambda one: one[0])]
    columns = [DataColumn(name, number=i > 1) for i, name in enumerate(_COLUMNS)]
    return DataTable("Servers", columns=columns, rows=rows, caption=_CAPTION)


def _list_cells(found: Verification, side: VerifiedSide) -> list[DataCell]:
    beyond = side.beyond_noise if found.floor is None else side.beyond_floor
    p = _tell_p(side) if side.outcome is VerificationOutcome.ANOTHER else "-"
    return [
        DataCell(
            _SHORT.get(side.outcome, side.outcome.value),
            state=name_state(side.outcome.value),
        ),
        _write(_name_part(side)),
        *map(_write, (str(side.asked), str(beyond), write_nats(side.median), p)),
    ]


def _write(text: str) -> DataCell:
    return DataCell(text)


def _name_part(side: VerifiedSide) -> str:
    return ", ".join(filter(None, (side.name, side.role)))


def _draw(found: Verification) -> list[Block]:
    """Return the distances of the worst servers as pictures, for the page."""
    levels = {"noise": found.noise, **({} if found.floor is None else {"floor": found.floor})}
    sides = sorted(found.sides, key=lambda one: (rank_outcome(one.outcome.value), -one.median))
    pictures = [
        draw_distribution(
            f"{side.name}: distances of its answers",
            {side.name: [one.nats for one in side.distances]},
            "nat",
            levels,
        )
        for side in sides[:MOST_DRAWN]
    ]
    shown = [one for one in pictures if one is not None]
    section = PictureSection("Distances from the reference", shown)
    return [Block(section, depth=Depth.PAGE)] if shown else []


def _make_suite(found: Verification, document: Document) -> CiSuite:
    """Return a case for each server; one that was not verified is an error."""
    lines = document.make_lines()
    cases = [
        CiCase(
            "verify",
            side.name,
            state=_STATES[side.outcome],
            line=line,
            details=[side.why, *side.prompts],
            properties={
                "outcome": side.outcome.value,
                "probes": str(side.asked),
                "beyond_floor": str(side.beyond_floor),
                "median_nats": f"{side.median:.6g}",
            },
            in_table=True,
        )
        for side, line in zip(found.sides, lines, strict=False)
    ]
    cases += [
        CiCase(
            "verify",
            one.name,
            state=CiState.ERROR,
            line=line,
            details=[one.why],
            in_table=True,
        )
        for one, line in zip(found.lost, lines[len(found.sides) :], strict=True)
    ]
    return CiSuite("serve-eval verify", cases, seconds=found.wall_s)
