"""Judge for each claim whether the path was used, for verdicts or warnings.

Precedence: a FAIL stays a FAIL, since a drop is evidence whatever the path was. PASS and NO
REFERENCE become INCONCLUSIVE, since they say nothing about a path that was not used. The other
outcomes stay. Each gets the reason.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Literal

from serve_eval.client.engine_metrics import add
from serve_eval.evidence.engine_counters import SessionMeter
from serve_eval.evidence.path_facts import (
    CONTEXT,
    GENERATION,
    ClaimEvidence,
    PathFacts,
    leave_open,
    prove,
    refute,
)
from serve_eval.schema import (
    EngineCounts,
    PathClaim,
    PathFinding,
    PathPromiser,
    Plan,
    ProofState,
    ServerCounts,
    Verdict,
    VerdictOutcome,
)

LEAST_PROMPTS = 16
"""Prompts that must have been compared before equal answers prove anything."""
HINT = "To show it: --repeats 2, with temperature 0 or a sampling seed"


def judge_determinism(facts: PathFacts) -> ClaimEvidence:
    """Return whether answers repeated. A single difference refutes it."""
    found = facts.repeated
    if found is None or (not found.differ and found.prompts < LEAST_PROMPTS):
        count = 0 if found is None else found.prompts
        return leave_open(f"{count} prompts were answered more than once", HINT)
    if found.differ:
        return refute(
            f"{found.differ:,} of {found.prompts:,} prompts got another answer when asked again,"
            f" for example {found.example}"
        )
    return prove(f"all {found.prompts:,} prompts that were asked again got the same answer")


LEAST_SHARE = 0.5
"""Smallest share of the prompt tokens, or of the requests, that proves a transfer."""
UNUSED_FROM = 20
"""Answers per server of a role from which a server without any request is named. A router that
chooses at random leaves out a sound one with a probability below e^-20 times their number."""
TRANSFER_HINT = (
    "To show it: with vLLM, let /metrics of the generation servers be read; with SGLang, start all"
    " servers with --enable-metrics; with trtllm-serve, set return_perf_metrics on all servers"
    " (launcher.perf_metrics: true does). Servers that nobody lists are named with launcher.servers"
)
_HITS = "local_cache_hit"


def judge_kv_transfer(facts: PathFacts) -> ClaimEvidence:
    """Return whether the KV cache moved. The strongest evidence decides.

    That is the number of moved tokens, then the requests of the context servers and the KV caches
    that they sent, then the servers and transfers that an orchestrator reports for each answer.
    """
    idle = _idle_context(facts)
    if (moved := count_moved(facts.servers)) is not None and moved[1]:
        return _by_tokens(*moved, idle)
    if idle is not None:
        return refute(idle, odd=True)
    if (sent := _count(facts, CONTEXT, "transfers")) is not None and facts.answered:
        return _by_transfers(sent, facts.answered)
    return _by_legs(facts)


def count_moved(servers: Sequence[ServerCounts]) -> tuple[int, int] | None:
    """Return the moved prompt tokens and all of them at generation servers; None if unknown.

    Tokens from a server's own prefix cache need no transfer and are left out of both.
    """
    found = [
        (one.counts.moved_tokens, _own_work(one.counts))
        for one in servers
        if one.counts is not None and one.role == GENERATION
    ]
    known = [(moved, of) for moved, of in found if moved is not None and of is not None]
    if not known:
        return None
    return sum(moved for moved, _ in known), sum(of for _, of in known)


def _own_work(counts: EngineCounts) -> int | None:
    """Return the prompt tokens that a server did not have in its own prefix cache."""
    if counts.prompt_tokens is None:
        return None
    return counts.prompt_tokens - (counts.prompt_tokens_by_source or {}).get(_HITS, 0)


def list_unused(facts: PathFacts) -> Iterator[str]:
    """Yield a warning for each server without a request while its siblings had some."""
    for role in (CONTEXT, GENERATION):
        ones = [one for one in facts.servers if one.role == role]
        counts = {
            one.server: one.counts.requests
            for one in ones
            if one.counts is not None and one.counts.requests is not None
        }
        total = sum(counts.values())
        if not total or total < UNUSED_FROM * len(ones):
            continue
        for one in ones:
            if counts.get(one.server) == 0:
                yield (
                    f"path: {one.server} ({one.url}) had 0 of the {total:,} requests to"
                    f" {role} servers"
                )


def _idle_context(facts: PathFacts) -> str | None:
    """Return evidence that the context servers had too few requests; None if they had enough."""
    requests = _count(facts, CONTEXT, "requests")
    if requests is not None and facts.answered and requests < LEAST_SHARE * facts.answered:
        return f"context servers had {requests:,} of {facts.answered:,} requests"
    return None


def _count(facts: PathFacts, role: str, what: Literal["requests", "transfers"]) -> int | None:
    """Return a count of the servers of a role, if all of them have it."""
    counts = [one.counts for one in facts.servers if one.role == role]
    told = [None if one is None else getattr(one, what) for one in counts]
    known = [one for one in told if one is not None]
    return sum(known) if counts and len(known) == len(counts) else None


def _by_transfers(sent: int, answered: int) -> ClaimEvidence:
    """Judge by the KV caches that context servers sent, as SGLang's count them."""
    said = f"context servers sent {sent:,} KV caches for {answered:,} answers"
    return prove(said) if sent >= LEAST_SHARE * answered else refute(said, odd=True)


def _by_tokens(moved: int, of: int, idle: str | None) -> ClaimEvidence:
    if moved < LEAST_SHARE * of:
        what = "no KV moved" if not moved else f"{moved:,} of {of:,} prompt tokens moved"
        first = "" if idle is None else f"{idle}; "
        return refute(
            f"{first}{what}: the generation servers prefilled {of - moved:,} of {of:,} prompt"
            " tokens themselves",
            odd=True,
        )
    return prove(f"{moved:,} of {of:,} prompt tokens of generation servers came by KV transfer")


def _by_legs(facts: PathFacts) -> ClaimEvidence:
    """Judge by the reports of an orchestrator on each answer."""
    legs = facts.legs
    if not legs.generation:
        said = "no server of the endpoint counts moved tokens, and no answer names its servers"
        requests = [_count(facts, role, "requests") for role in (CONTEXT, GENERATION)]
        if None not in requests:
            said = (
                f"context servers had {requests[0]:,} requests and generation servers"
                f" {requests[1]:,}, but none of them counts moved tokens"
            )
        return leave_open(said, TRANSFER_HINT)
    of = f"{legs.generation:,} answers"
    if legs.moved >= LEAST_SHARE * legs.generation:
        return prove(f"a transfer of the KV cache was reported for {legs.moved:,} of {of}")
    if legs.moved:
        return refute(
            f"a transfer of the KV cache was reported for {legs.moved:,} of {of}", odd=True
        )
    if legs.context < LEAST_SHARE * legs.generation:
        return leave_open(
            f"reports name a context server for {legs.context:,} of {of}, and no transfer: an"
            " orchestrator that asks generation servers first leaves the name empty",
            TRANSFER_HINT,
        )
    return leave_open(
        f"servers of both roles took part in {legs.context:,} of {of}, but no report has the time"
        " or the size of a transfer",
        TRANSFER_HINT,
    )


LEAST_SHARED = 1000
"""Characters that two prompts must share at their beginning before 0 hits mean anything: some 200
tokens, more than the largest usual block of 128."""
CACHE_HINT = (
    "To show it: with vLLM, let /metrics be read, or start it with --enable-prompt-tokens-details;"
    " start SGLang with --enable-metrics or --enable-cache-report; trtllm-serve counts with"
    " return_perf_metrics"
)
SHARE = "To show it: ask prompts with the same beginning, such as worked examples, or --repeats 2"


def judge_prefix_cache(facts: PathFacts) -> ClaimEvidence:
    """Return whether tokens came from the prefix cache.

    Answers of one engine tell it for our requests alone. Behind an orchestrator they count moved
    tokens too, so that only the engines' own counters are evidence.
    """
    counted = [one for one in facts.of_role() if one.prefix_cache_hits is not None]
    total = add(counted)
    reported = None if facts.disaggregated else facts.cached
    if reported:
        return prove(f"answers report {reported:,} prompt tokens from the prefix cache")
    if counted and total.prefix_cache_queries == 0:
        return refute("no engine searched a prefix cache: it is off, or no prompt came")
    if reported is not None:
        return _judge_no_hits(
            facts, "answers report 0 prompt tokens from the prefix cache", asked=False
        )
    if not counted:
        return leave_open("no answer reports cached tokens, and no engine counts hits", CACHE_HINT)
    of = "" if total.prefix_cache_queries is None else f" of {total.prefix_cache_queries:,}"
    if total.prefix_cache_hits:
        return prove(f"the prefix cache had {total.prefix_cache_hits:,}{of} prompt tokens")
    return _judge_no_hits(
        facts,
        f"prefix cache hits: 0{of} prompt tokens",
        asked=bool(total.prefix_cache_queries),
    )


def _judge_no_hits(facts: PathFacts, said: str, *, asked: bool) -> ClaimEvidence:
    """Return the finding for no hits. `asked`: the engine has a prefix cache and searched it."""
    shared = facts.find_shared()
    if shared < LEAST_SHARED:
        return leave_open(
            f"{said}, and no two prompts share more than {shared:,} characters at their beginning",
            SHARE,
        )
    return refute(f"{said}, though prompts share up to {shared:,} characters", odd=asked)


FEW_TOKENS = 2
"""Tokens per answer up to which an answer needs no draft: the first token comes with the prompt."""
SPECULATION_HINT = (
    "To show it: with vLLM, let /metrics be read; start SGLang with --enable-metrics; trtllm-serve"
    " reports steps in its answers, and counts drafts with return_perf_metrics"
)


def judge_speculation(facts: PathFacts) -> ClaimEvidence:
    """Return whether drafts became part of answers.

    Reports in answers come first, since they are about our requests alone.
    """
    if 0 < facts.tokens <= FEW_TOKENS * facts.answered:
        return leave_open(
            f"{facts.answered:,} answers with {facts.tokens:,} generated tokens need no drafts",
            "To show it: add a task with long answers, such as gsm8k",
        )
    if facts.acceptances:
        return _by_steps(facts)
    return _by_counters(facts)


def _by_steps(facts: PathFacts) -> ClaimEvidence:
    answers = sum(one.answers for one in facts.acceptances)
    most = max(one.all_steps for one in facts.acceptances)
    if most > 1.0:
        return prove(f"up to {most:.2f} tokens per step, as {answers:,} answers report")
    return refute(f"speculation accepted nothing: {answers:,} answers report one token per step")


def _by_counters(facts: PathFacts) -> ClaimEvidence:
    """Judge by the counters of all engines but those of context servers, if any others count."""
    others = [one.role for one in facts.servers if one.role != CONTEXT]
    counted = facts.of_role(*others) if others else facts.of_role()
    drafting = [one for one in counted if one.draft_tokens is not None]
    if not drafting and (found := _by_verifications(add(counted))) is not None:
        return found
    if not drafting:
        # vLLM has these counters exactly if it speculates.
        if counted and all(one.prompt_tokens_by_source is not None for one in counted):
            return refute("no engine has counters of drafts, which vLLM has if it speculates")
        return leave_open("no answer reports steps, and no engine counts drafts", SPECULATION_HINT)
    total = add(drafting)
    drafted, accepted = total.draft_tokens or 0, total.accepted_tokens or 0
    if not drafted:
        return refute(f"no draft was made for {facts.tokens:,} generated tokens")
    if not accepted:
        return refute(f"speculation accepted nothing: 0 of {drafted:,} draft tokens", odd=True)
    return prove(f"{accepted:,} of {drafted:,} draft tokens were accepted")


def _by_verifications(total: EngineCounts) -> ClaimEvidence | None:
    """Judge by how often drafts were verified, which is all that SGLang counts; None if it is not.

    The first token of an answer comes with the prompt, and each verification gives one token more
    than it accepts. What was generated beyond that was accepted.
    """
    verified, tokens, requests = total.drafts, total.generated_tokens, total.requests
    if verified is None or tokens is None or requests is None:
        return None
    if not verified:
        return refute(f"no draft was verified for {tokens:,} generated tokens")
    accepted = tokens - requests - verified
    said = f"{verified:,} verifications of drafts for {tokens:,} generated tokens"
    if accepted <= 0:
        return refute(f"speculation accepted nothing: {said}", odd=True)
    return prove(f"{said}: at least {accepted:,} tokens were accepted")


JUDGES: Mapping[PathClaim, Callable[[PathFacts], ClaimEvidence]] = {
    PathClaim.KV_TRANSFER: judge_kv_transfer,
    PathClaim.PREFIX_CACHE: judge_prefix_cache,
    PathClaim.SPECULATION: judge_speculation,
    PathClaim.DETERMINISTIC: judge_determinism,
}
BECOMES_INCONCLUSIVE = (
    VerdictOutcome.PASS,
    VerdictOutcome.PASS_BY_IDENTITY,
    VerdictOutcome.NO_REFERENCE,
)


def list_expected(
    named: Mapping[str, bool], launched: Iterable[str]
) -> dict[PathClaim, PathPromiser]:
    """Return who expects each claim. A plan takes back with False what the launcher expects."""
    promised = set(launched)
    found: dict[PathClaim, PathPromiser] = {
        claim: "launcher" for claim in PathClaim if claim in promised and named.get(claim, True)
    }
    return found | {PathClaim(name): "plan" for name, wanted in named.items() if wanted}


def foresee_path(plan: Plan, meter: SessionMeter | None) -> Iterator[str]:
    """Yield a warning before the first request if the counters that would prove a path are missing.

    `meter` has the servers that count.
    """
    if not plan.expect.get(PathClaim.KV_TRANSFER):
        return
    roles = {one.role for one in (() if meter is None else meter.servers)}
    if GENERATION not in roles:
        yield (
            "kv_transfer is expected, and no generation server shows its counters: unless answers"
            " name their servers, the result will be INCONCLUSIVE"
        )


def find_path(
    facts: PathFacts, expected: Mapping[PathClaim, PathPromiser]
) -> tuple[PathFinding, ...]:
    """Return a finding for each expected claim."""
    found = []
    for claim in PathClaim:
        if claim in expected:
            told = JUDGES[claim](facts)
            found.append(
                PathFinding(
                    claim=claim,
                    state=told.state,
                    evidence=told.evidence,
                    hint=told.hint,
                    expected_by=expected[claim],
                )
            )
    return tuple(found)


def warn_of_path(
    facts: PathFacts, found: Sequence[PathFinding], unwanted: Iterable[str]
) -> Iterator[str]:
    """Yield what looks wrong, and what the launcher promised and does not show.

    Nothing is said of the `unwanted` claims.
    """
    for one in found:
        if one.state is ProofState.UNKNOWN and one.expected_by == "launcher":
            yield (
                f"path: {one.claim}, which the launcher started, does not show from outside:"
                f" {one.evidence}. {one.hint}"
            )
    silent = {*unwanted, *(one.claim for one in found)}
    for claim in PathClaim:
        if claim not in silent and (claim is not PathClaim.PREFIX_CACHE or _may_look(facts)):
            told = JUDGES[claim](facts)
            if told.odd and (claim is not PathClaim.KV_TRANSFER or facts.disaggregated):
                yield f"path: {claim} is not expected, but it looks wrong: {told.evidence}"
    if PathClaim.KV_TRANSFER not in {*unwanted}:
        yield from list_unused(facts)


def _may_look(facts: PathFacts) -> bool:
    """Return True if an engine searched a prefix cache, before prompts are compared for it."""
    return any(one.prefix_cache_queries for one in facts.of_role())


def apply_path(verdict: Verdict, found: Iterable[PathFinding]) -> Verdict:
    """Return the verdict with the reasons of a path that is not proven."""
    reasons = tuple(one.reason for one in found if one.blocks)
    if not reasons:
        return verdict
    outcome = verdict.outcome
    if outcome in BECOMES_INCONCLUSIVE:
        outcome = VerdictOutcome.INCONCLUSIVE
    return replace(verdict, outcome=outcome, reasons=(*verdict.reasons, *reasons))
