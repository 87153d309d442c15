"""Test what the counters, reports and answers of a run prove about each claim."""

import pytest

from serve_eval.evaluation.prove_path import join_repeated, may_compare
from serve_eval.evidence.path_facts import NamedLegs, PathFacts, count_legs, find_longest_shared
from serve_eval.evidence.path_proof import (
    apply_path,
    count_moved,
    judge_determinism,
    judge_kv_transfer,
    judge_prefix_cache,
    judge_speculation,
    list_expected,
    list_unused,
)
from serve_eval.protocol.shared import build_task
from serve_eval.schema import (
    Acceptance,
    EngineCounts,
    PathClaim,
    PathFinding,
    ProofState,
    RepeatedAnswers,
    ServerCounts,
    Spec,
    Verdict,
    VerdictOutcome,
)
from serve_eval.storage.answer_origins import Served

PROVEN, REFUTED, UNKNOWN = ProofState
LONG = 5000


def _server(role, number=0, **counts):
    name = f"{role}_{number}"
    return ServerCounts(server=name, url=f"http://{name}", role=role, counts=EngineCounts(**counts))


def _vllm(moved, of, hits=0):
    sources = {"external_kv_transfer": moved, "local_cache_hit": hits}
    return {"prompt_tokens": of, "prompt_tokens_by_source": sources}


@pytest.mark.parametrize(
    ("moved", "of", "hits", "state"),
    [
        (700, 700, 0, PROVEN),
        (350, 700, 0, PROVEN),
        (349, 700, 0, REFUTED),
        (0, 700, 0, REFUTED),
        (10, 700, 690, PROVEN),  # its own prefix cache had the rest
        (0, 0, 0, UNKNOWN),
    ],
)
def test_moved_tokens_decide(moved, of, hits, state):
    facts = PathFacts(servers=[_server("generation", **_vllm(moved, of, hits))], answered=10)
    assert judge_kv_transfer(facts).state is state
    assert count_moved(facts.servers) == (moved, of - hits)


def test_servers_of_trtllm_tell_too_little_without_reports():
    def judge(context, legs=NamedLegs()):  # noqa: B008
        servers = [_server("context", requests=context), _server("generation", requests=400)]
        told = judge_kv_transfer(PathFacts(servers=servers, answered=400, legs=legs))
        return told.state, told.evidence

    assert judge(0) == (REFUTED, "context servers had 0 of 400 requests")
    assert judge(199)[0] is REFUTED
    assert judge(400) == (
        UNKNOWN,
        "context servers had 400 requests and generation servers 400, but none of them counts moved"
        " tokens",
    )
    assert judge(400, NamedLegs(400, 400, 400)) == (
        PROVEN,
        "a transfer of the KV cache was reported for 400 of 400 answers",
    )
    assert judge(400, NamedLegs(400, 400, 3))[0] is REFUTED
    assert judge(400, NamedLegs(400, 400, 0))[0] is UNKNOWN
    assert judge(400, NamedLegs(400, 0, 0)) == (
        UNKNOWN,
        "reports name a context server for 0 of 400 answers, and no transfer: an orchestrator that"
        " asks generation servers first leaves the name empty",
    )
    assert judge(400, NamedLegs(400, 0, 400))[0] is PROVEN
    assert judge(400, NamedLegs(400, 0, 3))[0] is REFUTED


def test_legs_are_those_of_the_last_attempt():
    def line(context, **more):
        return Served(
            task="t", id="1", started_s=0, context=context, generation="g", how="header", **more
        )

    served = {"t": {"1": [line("c"), line(None)], "2": [line("c", kv_transfer_s=0.1)]}}
    assert count_legs(served) == (2, 1, 1)
    assert count_legs({"t": {"3": [line("c", kv_bytes=7.0)]}}) == (1, 1, 1)


def test_an_idle_server_is_named_only_if_chance_cannot_leave_it_out():
    def warn(requests):
        servers = [_server("context", requests=requests), _server("context", 1, requests=0)]
        return list(list_unused(PathFacts(servers=servers, answered=requests)))

    assert warn(39) == []
    assert warn(40) == [
        "path: context_1 (http://context_1) had 0 of the 40 requests to context servers"
    ]


def _steps(all_steps):
    return Acceptance(answers=9, length=None, all_steps=all_steps, per_answer=all_steps)


@pytest.mark.parametrize(
    ("more", "state", "evidence"),
    [
        ({"tokens": 20}, UNKNOWN, "10 answers with 20 generated tokens need no drafts"),
        ({"acceptances": [_steps(1.0)]}, REFUTED, "9 answers report one token per step"),
        ({"acceptances": [_steps(1.0), _steps(2.5)]}, PROVEN, "up to 2.50 tokens per step"),
        ({}, UNKNOWN, "no answer reports steps, and no engine counts drafts"),
        ({"servers": [_server(None, **_vllm(0, 9))]}, REFUTED, "no engine has counters of drafts"),
        ({"servers": [_server(None, requests=3)]}, UNKNOWN, "no engine counts drafts"),
        (
            {"servers": [_server(None, draft_tokens=0, accepted_tokens=0)]},
            REFUTED,
            "no draft was made for 5,000 generated tokens",
        ),
        (
            {"servers": [_server(None, draft_tokens=90, accepted_tokens=0)]},
            REFUTED,
            "accepted nothing: 0 of 90 draft tokens",
        ),
        (
            {"servers": [_server(None, draft_tokens=90, accepted_tokens=1)]},
            PROVEN,
            "1 of 90 draft tokens were accepted",
        ),
        (  # drafts of a context server alone are no speculation in answers
            {
                "servers": [
                    _server("context", draft_tokens=9, accepted_tokens=9),
                    _server("generation", draft_tokens=9, accepted_tokens=0),
                ]
            },
            REFUTED,
            "0 of 9 draft tokens",
        ),
    ],
)
def test_drafts_decide_about_speculation(more, state, evidence):
    told = judge_speculation(PathFacts(**{"answered": 10, "tokens": LONG, **more}))
    assert told.state is state
    assert evidence in told.evidence


@pytest.mark.parametrize(
    ("more", "state", "evidence"),
    [
        ({}, UNKNOWN, "no answer reports cached tokens, and no engine counts hits"),
        ({"cached": 12}, PROVEN, "answers report 12 prompt tokens from the prefix cache"),
        ({"cached": 0}, REFUTED, "answers report 0 prompt tokens"),
        ({"cached": 0, "find_shared": lambda: 999}, UNKNOWN, "share more than 999 characters"),
        (
            {
                "cached": 0,
                "find_shared": lambda: 5,
                "servers": [_server(None, prefix_cache_hits=0, prefix_cache_queries=0)],
            },
            REFUTED,
            "no engine searched a prefix cache",
        ),
        # Behind an orchestrator, answers count moved tokens as cached.
        ({"cached": 12, "legs": NamedLegs(9, 9, 9)}, UNKNOWN, "no engine counts hits"),
        ({"servers": [_server(None, prefix_cache_hits=3)]}, PROVEN, "had 3 prompt tokens"),
        ({"servers": [_server(None, prefix_cache_hits=0)]}, REFUTED, "hits: 0 prompt tokens"),
        (
            {"servers": [_server(None, prefix_cache_hits=0, prefix_cache_queries=0)]},
            REFUTED,
            "no engine searched a prefix cache",
        ),
    ],
)
def test_hits_decide_about_the_prefix_cache(more, state, evidence):
    told = judge_prefix_cache(PathFacts(**{"find_shared": lambda: 1000, **more}))
    assert told.state is state
    assert evidence in told.evidence


def test_the_longest_shared_beginning_is_found():
    assert find_longest_shared([]) == find_longest_shared(["abc"]) == 0
    assert find_longest_shared(["abcdX", "zz", "abcdY", "ab", "z"]) == 4
    assert find_longest_shared(["same", "same"]) == 4


def test_equal_answers_prove_determinism_only_of_enough_prompts():
    def judge(prompts, differ):
        found = RepeatedAnswers(prompts=prompts, differ=differ, example="t 1")
        return judge_determinism(PathFacts(repeated=found)).state

    assert judge_determinism(PathFacts()).state is UNKNOWN
    assert (judge(15, 0), judge(16, 0), judge(200, 31), judge(2, 1)) == (
        UNKNOWN,
        PROVEN,
        REFUTED,
        REFUTED,
    )


def test_comparisons_of_sessions_are_added():
    one = RepeatedAnswers(prompts=3, differ=0, failed=1)
    two = RepeatedAnswers(prompts=4, differ=2, example="t 9")
    assert join_repeated([one, two]) == RepeatedAnswers(
        prompts=7, differ=2, failed=1, example="t 9"
    )
    assert join_repeated([]) is None


def test_only_answers_that_should_repeat_are_compared():
    def may(**options):
        return may_compare(build_task(Spec(name="word_problems", options=options)))

    assert may()
    assert not may(temperature=0.7)
    assert may(temperature=0.7, seed=3)
    assert not may_compare(build_task(Spec(name="perplexity", options={"files": ["a.txt"]})))


def test_a_plan_overrides_its_launcher():
    launched = ["kv_transfer", "speculation", "of a newer version"]
    named = {"speculation": True, "prefix_cache": True}
    assert list_expected(named, launched) == {
        PathClaim.KV_TRANSFER: "launcher",
        PathClaim.SPECULATION: "plan",
        PathClaim.PREFIX_CACHE: "plan",
    }
    assert list_expected({"kv_transfer": False}, launched[:1]) == {}


@pytest.mark.parametrize("outcome", VerdictOutcome)
def test_an_unproven_path_takes_back_a_pass_and_no_other_outcome(outcome):
    verdict = Verdict(task="t", outcome=outcome, rule="classic", evaluated=1.0, reasons=("a",))
    finding = PathFinding(
        claim=PathClaim.KV_TRANSFER, state=REFUTED, evidence="no KV moved", expected_by="launcher"
    )
    changed = apply_path(verdict, [finding])
    taken_back = outcome in (
        VerdictOutcome.PASS,
        VerdictOutcome.PASS_BY_IDENTITY,
        VerdictOutcome.NO_REFERENCE,
    )
    assert changed.outcome is (VerdictOutcome.INCONCLUSIVE if taken_back else outcome)
    assert changed.reasons == ("a", "path not proven: kv_transfer: no KV moved")
    assert apply_path(verdict, []) == verdict


@pytest.mark.parametrize(
    ("expected_by", "state", "blocks"),
    [
        ("plan", PROVEN, False),
        ("plan", REFUTED, True),
        ("plan", UNKNOWN, True),
        ("launcher", REFUTED, True),
        ("launcher", UNKNOWN, False),
        (None, REFUTED, False),
    ],
)
def test_what_blocks_a_verdict(expected_by, state, blocks):
    finding = PathFinding(
        claim=PathClaim.SPECULATION, state=state, evidence="e", expected_by=expected_by
    )
    assert finding.blocks is blocks
