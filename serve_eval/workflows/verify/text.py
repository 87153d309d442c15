"""Print the result of a verification."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

from rich.console import Console
from rich.text import Text

from serve_eval.evaluation.probes.evidence import ALPHA, UNSOUND
from serve_eval.evaluation.probes.floor import limits_of
from serve_eval.evaluation.probes.limits import FAR_NATS, TIMES
from serve_eval.evaluation.probes.sentences import FAULT_SHARE
from serve_eval.report.layout import fit_tables, say, tell_rehearsal
from serve_eval.report.nats import write_nats
from serve_eval.report.summary.headline import badge
from serve_eval.report.summary.print_rows import print_commands, print_rows
from serve_eval.report.text import clean
from serve_eval.schema import (
    Verification,
    VerificationOutcome,
    VerifiedSide,
)
from serve_eval.shell_words import quote_word
from serve_eval.workflows.verify.advice import advise
from serve_eval.workflows.verify.fleet import MAJORITY
from serve_eval.workflows.verify.path import describe_path

CHUNK = 2048
"""Tokens of vLLM's default chunk of a prompt."""
_STYLES = {
    VerificationOutcome.IDENTICAL: "bold green",
    VerificationOutcome.OTHER_NUMERICS: "bold green",
    VerificationOutcome.ANOTHER: "bold red",
    VerificationOutcome.FAULT: "bold red",
    VerificationOutcome.OTHER_DEFAULTS: "bold red",
    VerificationOutcome.UNDECIDED: "bold yellow",
}
_SHORT = {
    VerificationOutcome.ANOTHER: "ANOTHER",
    VerificationOutcome.FAULT: "FAULT",
    VerificationOutcome.OTHER_DEFAULTS: "OTHER DEFAULTS",
}
_ORDER = (
    VerificationOutcome.ANOTHER,
    VerificationOutcome.FAULT,
    VerificationOutcome.OTHER_DEFAULTS,
    VerificationOutcome.UNDECIDED,
    VerificationOutcome.OTHER_NUMERICS,
    VerificationOutcome.IDENTICAL,
)
COLUMNS = ("server", "probes", "beyond floor", "median", "p", "outcome")
FEW = 3
"""Most servers that are described one after the other; more of them are a table."""
MOST_SOUND = 10
"""Most rows of servers with other numerics."""
MOST_NAMES = 8


def render(
    found: Verification, files: list[Path], addresses: Mapping[str, str], console: Console
) -> None:
    """Print the outcome of each server, and the figures behind it.

    `addresses` are those with which a further command reaches the servers, by name.
    """
    tell_rehearsal(found.rehearsal, console)
    wholes = [one for one in found.sides if one.part_of is None]
    if len(wholes) + len(_list_lost(found)) > 1:
        worst = find_worst(found, wholes)
        line = badge(_SHORT.get(worst, worst.value), _STYLES[worst])
        line.append(f"  {clean(summarise(found, wholes))}")
        console.print(line, soft_wrap=True)
    if len(wholes) > FEW:
        _tabulate(found, wholes, console)
    for side in found.sides:
        if side.part_of is not None or len(wholes) <= FEW:
            _describe(found, side, console)
    print_rows(
        console,
        (
            *(("lost", f"{one.name} was not verified: {one.why}") for one in found.lost),
            *(("so", line) for line in found.named),
            *(("warning", line) for line in found.warnings),
            *describe_cost(found),
            *(("written", str(file)) for file in files),
        ),
    )
    print_commands(console, list_commands(found, addresses))


def list_commands(found: Verification, addresses: Mapping[str, str]) -> list[str]:
    """Return what measures whether another model is worse, and the floor that is not known."""
    others = [one.name for one in found.sides if one.outcome in UNSOUND and one.part_of is None]
    pair = (found.reference.removeprefix(MAJORITY), *others[:1])
    known = [addresses[one] for one in pair if one in addresses] if others else []
    compare = " ".join(["serve-eval compare", *(known if len(known) == 2 else ())])
    return [compare] * bool(others) + measure_floor(found, addresses)


def measure_floor(found: Verification, addresses: Mapping[str, str]) -> list[str]:
    """Return the command that measures a floor that is missing."""
    asked = quote_word(addresses.get(found.reference, "HOST"))
    command = f"serve-eval verify {asked} --sibling SIBLING --register floor.json"
    return [command] * lacks_floor(found)


def lacks_floor(found: Verification) -> bool:
    """Return True if a server is undecided because no floor is known."""
    undecided = any(one.outcome is VerificationOutcome.UNDECIDED for one in found.sides)
    return undecided and found.floor is None and not found.rehearsal


def find_worst(found: Verification, wholes: Sequence[VerifiedSide]) -> VerificationOutcome:
    """Return the worst outcome; servers without one leave nothing decided."""
    known = {one.outcome for one in wholes}
    worst = next((one for one in _ORDER if one in known), VerificationOutcome.UNDECIDED)
    sound = worst in (VerificationOutcome.IDENTICAL, VerificationOutcome.OTHER_NUMERICS)
    return VerificationOutcome.UNDECIDED if sound and _list_lost(found) else worst


def _describe(found: Verification, side: VerifiedSide, console: Console) -> None:
    line = badge(side.outcome.value, _STYLES[side.outcome])
    if side.part_of is not None:
        line.append(f"  {clean(f'{side.name}, {side.role}: {side.why}')}")
        console.print(line, soft_wrap=True)
        return
    console.print(
        line.append(f"  {clean(f'{side.name} against {found.reference}')}"), soft_wrap=True
    )
    print_rows(console, (*list_rows(found, side), *(("prompts", line) for line in side.prompts)))


def list_names(names: Sequence[str]) -> str:
    """Return names with commas; of many, the first ones and the number of the others."""
    shown, more = names[:MOST_NAMES], len(names) - MOST_NAMES
    return ", ".join(shown) + (f" and {more} others" if more > 0 else "")


def summarise(found: Verification, wholes: Sequence[VerifiedSide]) -> str:
    """Return how many servers are another model, and their names."""
    count = len(wholes) + found.reference.startswith(MAJORITY) + len(_list_lost(found))
    bad = [one.name for one in wholes if one.outcome is VerificationOutcome.ANOTHER]
    faulty = [one.name for one in wholes if one.outcome is VerificationOutcome.FAULT]
    unlike = [one.name for one in wholes if one.outcome is VerificationOutcome.OTHER_DEFAULTS]
    open_ = [one.name for one in wholes if one.outcome is VerificationOutcome.UNDECIDED]
    verb = "are" if len(bad) > 1 else "is"
    told = f"{len(bad) or 'None'} of {count} servers {verb} another model, precision or cache"
    told += f": {list_names(bad)}" if bad else ""
    told += f"; a fault of single requests: {list_names(faulty)}" if faulty else ""
    told += f"; other sampling defaults: {list_names(unlike)}" if unlike else ""
    told += f"; undecided: {list_names(open_)}" if open_ else ""
    lost = _list_lost(found)
    return told + (f"; not verified: {list_names(lost)}" if lost else "")


def _list_lost(found: Verification) -> list[str]:
    """Return the names of the lost servers that are no parts of a deployment."""
    return [one.name for one in found.lost if one.part_of is None]


def _tabulate(found: Verification, wholes: Sequence[VerifiedSide], console: Console) -> None:
    """Print a row for each server that is not identical, and a line for the others."""
    say(console, f"against {found.reference}; limits: {describe_limits(found)}")
    ordered = sorted(wholes, key=lambda one: (_ORDER.index(one.outcome), -one.median))
    rows = [one for one in ordered if one.outcome is not VerificationOutcome.IDENTICAL]
    unsound = [one for one in rows if one.outcome is not VerificationOutcome.OTHER_NUMERICS]
    rows = rows[: len(unsound) + MOST_SOUND]
    if rows:
        for table in fit_tables(COLUMNS, [list_cells(one) for one in rows], console.width):
            console.print(table)
    for outcome in _ORDER[_ORDER.index(VerificationOutcome.UNDECIDED) + 1 :]:
        if rest := [one for one in ordered[len(rows) :] if one.outcome is outcome]:
            share = max(one.excluded_share or 0.0 for one in rest)
            others = "others" if len(rest) > 1 else "other"
            told = f"no fault in {share:.1%} of requests or more ({1 - ALPHA:.0%}, each)"
            say(console, f"{len(rest)} {others}: {outcome.value}; {told}")
    for side in unsound:
        for line in (*_tell_fault(found, side), *side.prompts):
            say(console, f"{side.name}: {line}")


def list_cells(side: VerifiedSide) -> list[Text]:
    p = _tell_p(side) if side.outcome is VerificationOutcome.ANOTHER else ""
    return [
        Text(clean(side.name)),
        Text(str(side.asked)),
        Text(str(side.beyond_floor)),
        Text(write_nats(side.median)),
        Text(p),
        Text(_SHORT.get(side.outcome, side.outcome.value), style=_STYLES[side.outcome]),
    ]


def _tell_p(side: VerifiedSide) -> str:
    p = 1 / side.evidence if side.p_holm is None else side.p_holm
    return f"< {max(p, 1e-12):.1g}"


def _tell_share(found: Verification, side: VerifiedSide) -> str:
    """Return which faults a sound outcome excludes: their share, and their least distance."""
    limits = limits_of(found)
    identical = side.outcome is VerificationOutcome.IDENTICAL or found.floor is None
    least = limits.beyond_noise if identical else limits.beyond_floors
    return (
        f"a fault of more than {least:.3g} nat in {side.excluded_share:.1%} of the requests or more"
        f" would have been seen ({1 - ALPHA:.0%})"
    )


def _tell_needed(side: VerifiedSide) -> str:
    """Return how many probes show a fault of few requests where healthy answers are far away."""
    return (
        f"answers of siblings are far away too, so a fault in {FAULT_SHARE:.0%} of the requests"
        f" shows in about {side.needed:,} probes (--probes {side.needed})"
    )


def describe_limits(found: Verification) -> str:
    floor = "" if found.floor is None else f", floor {write_nats(found.floor)}"
    return f"noise {write_nats(found.noise)}{floor} nat"


def list_rows(found: Verification, side: VerifiedSide) -> Iterator[tuple[str, str]]:
    """Yield the figures behind the outcome of a server, each with a label."""
    yield "why", side.why
    effect = "" if side.effect is None else f", {side.effect:.1f} times that of the sibling"
    yield (
        "distance",
        f"{write_nats(side.median)} nat in the median{effect}; limits: {describe_limits(found)}",
    )
    if side.compared:
        many = "the sibling" if found.siblings == 1 else "each sibling"
        yield (
            "pairs",
            f"{side.further} of {side.compared} probes are more than {TIMES:.0f} times as far away"
            f" as {many}",
        )
    if side.outcome is VerificationOutcome.ANOTHER:
        yield "p", f"{_tell_p(side)} (level {ALPHA}), looked at after each probe"
    if side.excluded_share is not None:
        yield "so", _tell_share(found, side)
    if side.needed is not None:
        yield "probes", _tell_needed(side)
    yield from (("fault", line) for line in _tell_fault(found, side))
    yield from (("path", line) for line in describe_path(side.engines))
    low, high = found.prompt_lengths
    cached = "" if side.cached_tokens is None else f", {side.cached_tokens:,} from the prefix cache"
    yield (
        "asked",
        f"{side.asked} probes of {low} to {high} tokens: {side.requests} requests,"
        f" {side.tokens:,} tokens{cached}",
    )


def _tell_fault(found: Verification, side: VerifiedSide) -> Iterator[str]:
    """Yield what is known about the kind of a fault."""
    if side.far:
        again = [one for one in side.distances if one.repeats]
        limits = limits_of(found)
        same = sum(min(one.repeats) > limits.far for one in again)
        yield (
            f"probes far away: {side.far}; so again each time they were repeated: {same} of"
            f" {len(again)}"
        )
    if place := _place(side):
        yield place
    if length := _length(side):
        yield length


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


def describe_cost(found: Verification) -> Iterator[tuple[str, str]]:
    """Yield what the verification cost and what its outcome does not say."""
    requests = sum(one.requests for one in found.sides) + found.reference_requests
    tokens = sum(one.tokens for one in found.sides) + found.reference_tokens
    yield "run", f"{requests:,} requests, {tokens:,} tokens, in {found.wall_s:.1f} s"
    if any(one.outcome is VerificationOutcome.ANOTHER for one in found.sides):
        yield "note", "this says that the model is another one, not that it is worse: measure that"
    undecided = [one for one in found.sides if one.outcome is VerificationOutcome.UNDECIDED]
    if undecided:
        yield "note", advise(found, undecided)
    for number, group in enumerate(found.groups, start=1):
        yield f"group {number}", f"{len(group)} answer alike: {list_names(group)}"
