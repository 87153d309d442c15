"""Test which record belongs to which request, and that slow workers are named.

Ids decide, or times on clocks that differ. An uncertain request is left unmatched, never guessed.

A worker is slow if its answers take long compared with those of the others. Equal workers are not
accused.
"""

import random
import time
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy.stats import binom

from serve_eval.evidence.attribution import BEGINNING, SUBJECT, kinds_of
from serve_eval.evidence.attribution.clock_offset import SentAttempt, WorkerRecord, record
from serve_eval.evidence.attribution.latency import ALPHA, Timed, describe_slow, in_run, rank_asked
from serve_eval.evidence.attribution.matching import IDS, TIMES, join
from serve_eval.protocol.shared import build_task
from serve_eval.report.attribution import sentences
from serve_eval.schema import Limits, Message, Sample, Spec
from serve_eval.stats.no_worse import no_worse
from tests.workflows.diagnose.server import (
    Said,
    Server,
    answers_to,
    plan_for,
    run,
    sound,
)

TIMING = {"arrival_time": 5.2, "first_token_time": 6.0, "last_token_time": 9.5}
TRANSFER = {
    "kv_cache_size": 1048576,
    "kv_cache_transfer_start": 5.25,
    "kv_cache_transfer_end": 5.75,
}
OLD = {
    "ctx_server": "a:8001",
    "gen_server": "b:8003",
    "disagg_server_arrival_time": 5.0,
    "disagg_server_first_token_time": 6.1,
    "ctx_perf_metrics": {
        "request_id": 7,
        "ctx_request_id": 1099511627777,
        "perf_metrics": {"timing_metrics": TIMING},
    },
    "gen_perf_metrics": {
        "request_id": 9,
        "perf_metrics": {"timing_metrics": {**TIMING, **TRANSFER}},
    },
}


def test_a_record_of_the_orchestrator_is_read():
    found = record(OLD, 100.0, 101.0)
    assert found == WorkerRecord(
        "a:8001", "b:8003", 5.0, 9.5, frozenset({"1099511627777"}), 0.5, 1048576.0, 100.0, 101.0
    )


def test_a_record_without_the_wrapper_of_its_metrics_is_read_too():
    bare = {**OLD, "gen_perf_metrics": {"timing_metrics": {**TIMING, **TRANSFER}}}
    assert record(bare, 100.0, 101.0) == record(OLD, 100.0, 101.0)


@pytest.mark.parametrize(
    ("told", "known"),
    [
        ({"gen_server": "b:1"}, (None, "b:1", None, None, None)),
        (
            {**OLD, "ctx_perf_metrics": None, "gen_perf_metrics": []},
            ("a:8001", "b:8003", 5.0, None, None),
        ),
        ({**OLD, "disagg_server_arrival_time": None}, ("a:8001", "b:8003", None, 9.5, 0.5)),
        ({**OLD, "disagg_server_arrival_time": float("nan")}, ("a:8001", "b:8003", None, 9.5, 0.5)),
    ],
)
def test_what_a_record_lacks_is_left_out(told, known):
    found = record(told, 0.0, 1.0)
    assert (*found.servers, found.arrival_s, found.finish_s, found.kv_transfer_s) == known


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(st.sampled_from([*OLD, "timing_metrics"]), inner)
    ),
    max_leaves=12,
)


@given(JSON)
def test_no_record_is_too_odd_to_be_passed_over(told):
    found = record(told, 0.0, 1.0)
    assert found is None or found.context is not None or found.generation is not None
    if found is not None:
        join([SentAttempt(float(i), i + 0.5) for i in range(15)], [found] * 15)


def _served(k, *ids, arrival_s=None):
    return WorkerRecord("c", f"g{k}", arrival_s, None, frozenset(ids), None, None, 0.0, 1.0)


def test_ids_join_whole_and_in_part_and_not_when_two_have_them():
    sent = [
        SentAttempt(1, 2, "cmpl-1099511627777"),
        SentAttempt(1, 2, "chatcmpl-abcdef0123"),
        SentAttempt(1, 2, "1099511627999"),
        SentAttempt(1, 2, None),
    ]
    records = [
        _served(0, "abcdef0123"),
        _served(1, "1099511627777"),
        _served(2, "1099511627999"),
        _served(3, "1234567"),
    ]
    assert {i: (one.generation, how) for i, (one, how) in join(sent, records).items()} == {
        0: ("g1", IDS),
        1: ("g0", IDS),
        2: ("g2", IDS),
    }
    assert 2 not in join(sent, [*records, _served(5, "1099511627999")])


class _Traffic:
    """Requests of `in_flight` lanes, and the records of a server with another clock.

    Each lane sends its requests one after the other.
    """

    def __init__(
        self,
        n=300,
        *,
        in_flight=8,
        takes_s=0.5,
        jitter_s=0.002,
        every_s=None,
        finish=True,
        off_s=0.0,
    ):
        rng = random.Random(n)
        free = [1e9 + rng.random() for _ in range(in_flight)]
        self.sent = []
        self.records = []
        for k in range(n):
            lane = free.index(min(free))
            start = free[lane] if every_s is None else 1e9 + k * every_s
            took = 0.02 + rng.expovariate(1 / takes_s) if every_s is None else takes_s
            arrival = start + 0.001 + rng.expovariate(1 / jitter_s)
            end = arrival + took + 0.01 + rng.expovariate(1 / jitter_s)
            free[lane] = end
            read = int(arrival + took) + 1.0
            at = arrival - 1e9 + 777.0
            last = at + took + off_s * (k % 4) if finish else None
            self.sent.append(SentAttempt(start, end))
            self.records.append(
                WorkerRecord(
                    f"c{k % 2}", f"g{k % 4}", at, last, frozenset(), None, None, read - 1.0, read
                )
            )
        self.truth = [one.servers for one in self.records]
        rng.shuffle(self.records)

    def joined(self):
        """Return how many requests are joined, and how many of them to a wrong server."""
        found = join(self.sent, self.records)
        assert all(how == TIMES for _, how in found.values())
        return len(found), sum(one.servers != self.truth[i] for i, (one, _) in found.items())


@pytest.mark.parametrize(
    ("traffic", "least", "most_wrong"),
    [
        (_Traffic(), 295, 0),
        (_Traffic(in_flight=64, takes_s=5.0), 290, 0),
        (_Traffic(in_flight=8, takes_s=0.05), 250, 6),
        (_Traffic(in_flight=8, finish=False), 200, 12),
        (
            _Traffic(off_s=0.004),
            290,
            0,
        ),  # the clocks of the generation servers differ by milliseconds
        (_Traffic(off_s=1e6), 200, 12),  # or by far more
        (_Traffic(n=700), 690, 1),  # two blocks
        (_Traffic(in_flight=1, takes_s=0.03), 295, 2),
        (_Traffic(every_s=0.1, takes_s=0.1), 0, 0),
    ],
)
def test_times_join_what_is_beyond_doubt(traffic, least, most_wrong):
    joined, other = traffic.joined()
    assert joined >= least
    assert other <= most_wrong


def test_requests_at_a_fixed_rate_are_anybodys_without_a_finish():
    assert _Traffic(every_s=0.05, takes_s=0.3, finish=False).joined() == (0, 0)


def test_requests_of_others_and_records_that_are_lost_do_no_harm():
    traffic = _Traffic()
    rng = random.Random(1)
    for k in range(100):
        at, read = 777.0 + 20 * rng.random(), 1e9 + 21.0
        traffic.records.append(
            WorkerRecord("c0", f"g{k % 4}", at, at + 0.3, frozenset(), None, None, read - 1.0, read)
        )
    traffic.records = [one for i, one in enumerate(traffic.records) if i % 10]
    joined, other = traffic.joined()
    assert joined >= 220
    assert other <= 8


def test_a_few_records_are_no_vote():
    assert _Traffic(n=8).joined() == (0, 0)


def test_no_record_is_joined_twice():
    traffic = _Traffic(in_flight=32, takes_s=0.05, jitter_s=0.01)
    told = [id(one) for one, _ in join(traffic.sent, traffic.records).values()]
    assert len(told) == len(set(told))


PROMPTS, REPEATS = 60, 4


@pytest.mark.parametrize(("wrong", "accused"), [(0.1, False), (0.7, True)])
def test_repeats_that_a_router_keeps_at_a_server_accuse_it_by_prompts_only(
    tmp_path, wrong, accused
):
    """All wrong answers are at g0: of few prompts by chance, though plain by answers."""

    def answer(asked):
        server = "g0" if asked.chance("server") < 0.5 else "g1"
        bad = server == "g0" and asked.chance("wrong") < wrong
        said = Said(text="0") if bad else sound(asked, 1.0)
        return replace(said, servers=("c0", server))

    plan = replace(plan_for(tmp_path, num_samples=PROMPTS), repeats=REPEATS)
    report = run(plan, Server(act=answer, answers=answers_to(plan.tasks[0])), tmp_path / "out")
    told = report.tasks[0].attribution
    assert (told.joined, told.dealt_by) == (PROMPTS * REPEATS, ())
    [row] = [row for row in told.rows if row.worker == "g0" and row.measure == "wrong answers"]
    counts = row.answers, row.bad, row.others, row.others_bad
    assert row.others_bad == 0 < row.bad
    assert all(count % REPEATS == 0 for count in counts)
    a, b, c, d = (count // REPEATS for count in counts)
    assert row.p == pytest.approx(no_worse([(a, b, c, d)]), rel=1e-6)
    assert no_worse([counts]) < 0.001
    assert row.accused is accused


TASK = build_task(Spec(name="gsm8k"))


def _samples(texts):
    return [Sample(id=str(i), prompt=text, target="1") for i, text in enumerate(texts)]


def test_a_subject_is_what_the_breakdown_tells_apart_first():
    mmlu = build_task(Spec(name="mmlu"))
    subjects = ["anatomy", "astronomy", "anatomy"]
    samples = [
        replace(one, metadata={"subject": s})
        for one, s in zip(_samples("???"), subjects, strict=True)
    ]
    assert kinds_of(mmlu, samples) == {SUBJECT: subjects}


def _alike(kind):
    return [kind.index(one) for one in kind]


@pytest.mark.parametrize("shared", [0, 70, 5000])
def test_prompts_begin_alike_up_to_where_some_of_them_part(shared):
    texts = [
        "s" * shared + about + f" question {i}"
        for i, about in enumerate(["a" * 99, "b" * 99, "a" * 99])
    ]
    for prompts in (texts, [(Message(role="user", content=text),) for text in texts]):
        samples = [Sample(id=str(i), prompt=prompt, target="1") for i, prompt in enumerate(prompts)]
        assert _alike(kinds_of(TASK, samples)[BEGINNING]) == [0, 1, 0]


def test_what_nothing_tells_apart_has_no_kinds():
    assert kinds_of(TASK, _samples(["the same"] * 3)) == {}
    assert kinds_of(TASK, []) == {}


CONTEXTS, GENERATIONS = ("c0", "c1"), ("g0", "g1", "g2", "g3")


def each(slow, prompts=40, tokens={}):  # noqa: B006
    """Return the answers of every worker to every prompt.

    Prompt k takes 1 + k / 10 s, times the factor of the worker.
    """

    def one(context, generation, k):
        name = context or generation or ""
        return Timed(
            context, generation, f"{k}", (1 + k / 10) * slow.get(name, 1.0), tokens.get(name, 50)
        )

    contexts = [one(c, None, k) for k in range(prompts) for c in CONTEXTS]
    return contexts + [one(None, g, k) for k in range(prompts) for g in GENERATIONS]


def pairs(slow, prompts=40):
    """Return the answers of every pair; `slow` holds factors of workers and of pairs."""
    return [
        Timed(c, g, f"{k}", (slow.get(c, 1.0) + slow.get(g, 1.0)) * slow.get(f"{c} + {g}", 1.0), 50)
        for k in range(prompts)
        for c in CONTEXTS
        for g in GENERATIONS
    ]


def slow(alone, joint):
    first, second = (
        [f"{row.role} {row.worker}" for row in rows if row.slow]
        for rows in rank_asked(alone, joint)
    )
    return first, second


@pytest.mark.parametrize(
    ("alone", "joint", "named"),
    [
        ({}, {}, ([], [])),
        ({"g2": 2.1}, {}, (["generation g2"], [])),
        ({"g2": 2.0}, {}, ([], [])),
        ({"c1": 10.0}, {}, (["context c1"], [])),
        (dict.fromkeys(GENERATIONS, 2.1), {}, (["generation "], [])),
        (dict.fromkeys(CONTEXTS, 5.0), {}, (["context "], [])),
        (
            {"g0": 9.0, "g1": 9.0, "g2": 9.0},
            {},
            ([], []),
        ),  # most are slow: the fourth one differs
        ({}, {"g2": 9.0}, ([], ["generation g2"])),
        ({}, {"c1 + g2": 2.1}, ([], ["pair c1 + g2"])),
        (
            {},
            {"c1": 50.0, "g2": 50.0},
            ([], ["context c1", "generation g2"]),
        ),  # they explain their pair
    ],
)
def test_who_is_slow_among_those_who_were_asked_the_same(alone, joint, named):
    assert slow(each(alone), pairs(joint)) == named


def test_a_slow_answer_now_and_then_is_not_told():
    timed = [
        one._replace(seconds=99.0) if one.generation == "g1" and int(one.prompt) < 20 else one
        for one in each({})
    ]
    assert slow(timed, []) == ([], [])
    assert slow([one for one in each({"g1": 9.0}) if int(one.prompt) < 6], []) == (
        [],
        [],
    )  # too few to prove anything


def test_longer_answers_may_take_longer():
    """Answers of the other servers may break off or be empty."""
    others = dict.fromkeys(("g0", "g2", "g3"), 0)
    assert slow(each({"g1": 5.0}, tokens={"g1": 80}), []) == ([], [])
    assert slow(each({"g1": 5.0}, tokens=others), []) == ([], [])
    assert slow(each({"g1": 5.0}, tokens={"g1": 60}), []) == (["generation g1"], [])


def test_nothing_to_compare_with():
    assert rank_asked([], []) == ((), ())
    assert in_run([]) == ()
    assert in_run([Timed("c0", "g0", "1", 1.0, 5)] * 50) == ()


def run_latency(slow, answers, *, in_turns, spread=0.3, seed=1):
    """Send every prompt to one pair; the times have heavy tails."""
    rng = random.Random(seed)
    found = []
    for k in range(answers):
        c = CONTEXTS[k % 2] if in_turns else rng.choice(CONTEXTS)
        g = GENERATIONS[k % 4] if in_turns else rng.choice(GENERATIONS)
        time = rng.lognormvariate(0.0, spread) * max(slow.get(c, 1.0), slow.get(g, 1.0))
        found.append(Timed(c, g, f"{k}", time, 50))
    return found


@pytest.mark.parametrize("in_turns", [True, False])
@pytest.mark.parametrize("name", ["c1", "g2"])
def test_a_slow_worker_of_a_run_is_named_and_not_its_partners(name, in_turns):
    [row] = [row for row in in_run(run_latency({name: 6.0}, 200, in_turns=in_turns)) if row.slow]
    assert row.worker == name
    assert row.taken_s > 4 * row.others_s


def test_a_few_answers_of_a_run_name_nobody():
    assert not any(row.slow for row in in_run(run_latency({"g2": 50.0}, 24, in_turns=True)))


@pytest.mark.parametrize("spread", [0.5, 2.0])
def test_of_a_healthy_run_nobody_is_called_slow_more_often_than_alpha_says(spread):
    found = [
        in_run(run_latency({}, 100, in_turns=False, spread=spread, seed=seed))
        for seed in range(300)
    ]
    assert sum(any(row.slow for row in rows) for rows in found) <= binom.ppf(0.999, 300, ALPHA)


def test_it_is_said_in_a_sentence():
    alone, _ = rank_asked(each({"g2": 4.0}), [])
    [row] = [row for row in alone if row.slow]
    said = (
        "generation server g2 takes 11.8 s per answer, the other generation servers 2.95 s"
        " (medians); more than 2"
    )
    assert describe_slow(row).startswith(f"slow_worker: {said} times as long for 40 of 40 (p = ")
    [leg] = [row for row in rank_asked(each(dict.fromkeys(GENERATIONS, 4.0)), [])[0] if row.slow]
    assert describe_slow(leg).startswith(
        "slow_leg: the generation servers take 11.8 s per answer, the context servers 2.95 s"
    )
    [pair] = [row for row in rank_asked([], pairs({"c1 + g2": 5.0}))[1] if row.slow]
    assert describe_slow(pair, "answer of a pair").startswith(
        "slow_pair: context server c1 with generation server g2 takes 10 s per answer of a pair,"
        " either of them "
    )


SHORT_S = 0.02


class _Queues:
    """Four equal servers, each of which answers one request after the other. g0 gets most."""

    def __init__(self):
        self.free_s = {}

    def answer(self, asked):
        draw = asked.chance("server")
        server = "g0" if draw < 0.7 else f"g{1 + int((draw - 0.7) / 0.1001)}"
        now_s = time.monotonic()
        self.free_s[server] = max(now_s, self.free_s.get(server, 0.0)) + SHORT_S
        delay_s = self.free_s[server] - now_s
        return Said(text=asked.target, servers=("c0", server), delay_s=delay_s)


def _long(asked):
    long = asked.chance("long") < 0.25
    server = "g0" if long else f"g{1 + int(3 * asked.chance('server'))}"
    tokens = 4000 if long else 200
    return Said(
        text=asked.target,
        servers=("c0", server),
        prompt_tokens=tokens,
        delay_s=SHORT_S * (tokens / 200) / 4,
    )


def _slow(asked):
    server = f"g{int(4 * asked.chance('server'))}"
    delay_s = SHORT_S * (10 if server == "g1" else 1)
    return Said(text=asked.target, servers=("c0", server), delay_s=delay_s)


@pytest.mark.parametrize(
    ("act", "said"),
    [
        (_Queues().answer, "more_loaded: generation server g0 takes "),
        (_long, "more_loaded: generation server g0 takes "),
        (_slow, "slow_worker: generation server g1 takes "),
    ],
)
def test_a_server_is_called_slow_only_if_its_work_does_not_explain_it(tmp_path, act, said):
    plan = replace(plan_for(tmp_path, num_samples=240), limits=Limits(concurrency=8))
    report = run(plan, Server(act=act, answers=answers_to(plan.tasks[0])), tmp_path / "out")
    [task] = report.tasks
    slow = [row.worker for row in task.attribution.times if row.slow]
    loaded = [row.worker for row in task.attribution.times if row.loaded]
    assert (slow, loaded) == (([], ["g0"]) if said.startswith("more") else (["g1"], []))
    shown = [row for row in task.attribution.times if row.slow or row.loaded]
    told = [*map(describe_slow, shown), *sentences(task.attribution)]
    assert sum(line.startswith(said) for line in told) == (2 if loaded else 1)
