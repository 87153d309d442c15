"""Compare two endpoints over several loads and with repeats."""

import asyncio
import random
from dataclasses import replace
from types import SimpleNamespace

import pytest
from scipy.stats import binom

from serve_eval.evaluation.evaluate import evaluate
from serve_eval.evidence.answer_pairs import TaskAnswers, find_prompt, read_task
from serve_eval.launchers import embedded
from serve_eval.report.summary import rows_of
from serve_eval.schema import (
    LaunchContext,
    Plan,
    Spec,
    TaskAtLoad,
    VerdictOutcome,
)
from serve_eval.storage import run_folder
from serve_eval.storage.report_file import read_report
from serve_eval.workflows.compare.at_loads import correct_loads, name_tasks
from serve_eval.workflows.compare.compare import CompareRules, CompareSide, compare
from serve_eval.workflows.compare.judging import ALPHA, more_failures, slower, uneven
from serve_eval.workflows.compare.rows import (
    describe_agreement_of,
    describe_task,
    summarise_compared,
)
from serve_eval.workflows.diagnose.story import diagnose
from tests.cli.command import serve_eval
from tests.json_files import read_json
from tests.scripted_server import ScriptedServer, answer, external, models
from tests.workflows.load.batch_server import targets_of

PROMPTS, ALL = 80, 500


class _Crowded:
    """Answers word problems rightly, but wrongly from a number in flight on."""

    def __init__(self, wrong_from):
        self.targets, self.wrong_from = targets_of(ALL), wrong_from
        self.flying = self.asked = 0

    async def __call__(self, request):
        target = self.targets.get(request.prompt)
        if target is None:
            return answer("ok")
        self.asked += 1
        self.flying += 1
        await asyncio.sleep(0.02)
        crowded = self.flying >= self.wrong_from
        self.flying -= 1
        return answer(f"In all they have:\n#### {int(target) + crowded}", usage=(9, 9))

    def server(self):
        return ScriptedServer(self, paths=["/v1/completions"], routes={"/v1/models": models("m")})


def _compare(out, wrong_from, loads, more=""):
    """Return the exit code, the output and the number of requests to B."""
    good, bad = _Crowded(PROMPTS), _Crowded(wrong_from)
    with good.server().serve_in_thread() as a, bad.server().serve_in_thread() as b:
        ran = serve_eval(
            f"compare {a} {b} --tasks word_problems --limit {PROMPTS} --self 0"
            f" --set compare.show_flips=0 --concurrency {loads} -o {out} {more}"
        )
    return ran.returncode, ran.stdout + ran.stderr, bad.asked


def test_the_load_from_which_b_is_worse_is_named(tmp_path):
    out = tmp_path / "out"
    code, said, asked = _compare(out, 2, "1,16", "--margin 10")
    assert (code, "word_problems at 16 in flight: B is worse from 16 on" in said) == (1, True), said
    found = read_json(out / "load_comparison.json")
    assert sorted(found["order"]) == [1, 16]
    rows = {one["load"]: one for one in found["tasks"]}
    assert (rows[1]["lost"], rows[1]["won"], rows[1]["outcome"]) == (0, 0, "PASS")
    assert rows[16]["lost"] > 20
    assert (rows[16]["outcome"], rows[16]["p_holm"]) == ("FAIL", 2 * rows[16]["p"])
    assert (out / "16" / "comparison.json").exists()
    assert asked == 2 * PROMPTS


def test_equal_sides_pass_and_one_number_compares_once(tmp_path):
    code, said, _ = _compare(tmp_path / "out", 99, "1,16", "--margin 10")
    assert (code, " PASS   2 comparisons: 2 PASS" in said) == (0, True), said
    code, _, _ = _compare(tmp_path / "one", 99, "4", "--margin 10")
    assert (code, (tmp_path / "one/comparison.json").exists()) == (0, True)


def test_what_has_no_load_is_refused(tmp_path):
    for loads, words in (("0,4", "expected numbers"), ("1,x", "expected numbers")):
        ran = serve_eval(
            f"compare h:1 h:2 --tasks gsm8k --concurrency {loads}", exits=2, tells=words
        )
    code, _, _ = _compare(tmp_path / "out", 99, "4", "--margin 10")
    ran = serve_eval(f"compare {tmp_path}/out/a h:2 --concurrency 1,4")
    assert (code, ran.returncode) == (0, 2)
    assert "a finished run was asked at one load" in ran.stderr


def _at(load, outcome, p):
    return TaskAtLoad(
        load=load, task="t", a=80.0, b=70.0, lost=9, won=1, failed=(0, 0), outcome=outcome, p=p
    )


@pytest.mark.parametrize(
    ("p", "corrected", "outcome", "words"),
    [
        (0.02, True, VerdictOutcome.INCONCLUSIVE, "not decided at 64"),
        (0.015, True, VerdictOutcome.FAIL, "B is worse from 64 on"),
        (0.04, False, VerdictOutcome.FAIL, "B is worse from 64 on"),
    ],
)
def test_drops_are_corrected_for_all_loads(p, corrected, outcome, words):
    fine = [_at(load, VerdictOutcome.PASS, 0.5) for load in (1, 16)]
    found = correct_loads([*fine, _at(64, VerdictOutcome.FAIL, p)], corrected=corrected)
    assert (found[-1].outcome, name_tasks(found)) == (outcome, {"t": words})


def _had(times=[], failed={}):  # noqa: B006
    latency_s = {str(i): time for i, time in enumerate(times)}
    started_s = {str(i): float(i) for i in range(len(times))}
    task = SimpleNamespace(result=SimpleNamespace(planned=len(times)))
    return TaskAnswers(task, None, ({},), ({},), started_s, latency_s, failed)


@pytest.mark.parametrize(
    ("of_b", "told"),
    [
        ([2.1] * 7, True),  # 2 ** -7
        ([2.1] * 6, False),
        ([2.0] * 50, False),
        ([2.1] * 20 + [1.9] * 18, False),
        ([2.1] * 30 + [0.1] * 10, True),
        ([], False),
    ],
)
def test_more_than_twice_as_long_for_more_than_half_of_the_prompts(of_b, told):
    said = slower(_had([1.0] * 60), _had(of_b))
    assert (said is not None) is told
    if said:
        assert said.startswith("slower: B took 2.1 s per answer and A 1 s (medians)")
        assert slower(_had(of_b), _had([1.0] * 60)) is None


def test_on_busy_cores_a_longer_time_is_no_evidence_against_b():
    """A sound pair of vLLM on two cores took up to seven times as long as one server."""
    one, pair = _had([0.25] * 60), _had([1.82] * 60)
    for quiet in (None, 0.0, 0.89):
        said = slower(one, pair, quiet)
        assert said.startswith("slower: B took 1.82 s per answer and A 0.25 s (medians), more than")
    said = slower(one, pair, 0.9)
    assert said.startswith("busy_cores: B took 1.82 s per answer and A 0.25 s (medians), while the")
    assert said.endswith("so that this says nothing of B")
    assert slower(one, one, 1.0) is None


def test_two_that_are_alike_are_called_slower_no_more_often_than_alpha_says():
    """The hardest sound case: a ratio whose median is exactly the limit."""
    rng = random.Random(3)
    said = sum(
        slower(_had([1.0] * 100), _had([2.0 * 3.0 ** rng.uniform(-1, 1) for _ in range(100)]))
        is not None
        for _ in range(1000)
    )
    assert said <= binom.ppf(0.999, 1000, ALPHA)


SOME_LATE = [1.0, 1.0, 1.0, 3.1, 1.0, 1.0] * 10


@pytest.mark.parametrize(
    ("of_a", "of_b", "told"),
    [
        ([1.0] * 60, SOME_LATE, True),
        ([1.0] * 60, [1.0] * 24 + SOME_LATE[:36], True),  # in 6 of 10 parts
        ([1.0] * 60, [1.0] * 30 + SOME_LATE[:30], False),
        ([1.0] * 60, [1.0] * 40 + [3.1] * 20, False),  # one pause
        ([1.0] * 60, [5 * time for time in SOME_LATE], True),  # each compared with its own side
        (SOME_LATE, SOME_LATE, False),  # long answers are long on both
        ([1.0] * 60, [5.0] * 60, False),
        ([], [], False),
    ],
)
def test_more_late_answers_than_the_other_side_has_all_the_time(of_a, of_b, told):
    said = uneven(_had(of_a), _had(of_b))
    assert (said is not None) is told
    if said:
        assert "answers of B took more than 3 times their median, and 0 of A; more in" in said
        assert uneven(_had(of_b), _had(of_a)) is None


def test_two_that_are_alike_are_called_uneven_no_more_often_than_alpha_says():
    rng = random.Random(4)
    sides = [
        [[1.0 + 4.0 * (rng.random() < 0.2) for _ in range(100)] for _ in range(2)]
        for _ in range(1000)
    ]
    said = sum(uneven(_had(one), _had(other)) is not None for one, other in sides)
    assert said <= binom.ppf(0.999, 1000, ALPHA)


@pytest.mark.parametrize(
    ("of_a", "of_b", "told"),
    [
        (0, 6, True),  # half of 2 ** -6
        (0, 5, False),
        (6, 6, False),
        (6, 0, False),
        (3, 20, True),
    ],
)
def test_requests_that_fail_at_one_of_both(of_a, of_b, told):
    a = {f"a{i}": "timeout" for i in range(of_a)}
    b = {f"b{i}": "disconnected" for i in range(of_b)}
    said = more_failures(_had([1.0] * 100, a), _had([1.0] * 100, b))
    assert (said is not None) is told
    if said:
        assert said.startswith(
            f"more_failures: requests for {of_b} of 100 prompts failed at B ({of_b} disconnected)"
        )
    shared = {**b, **a}
    assert more_failures(_had([1.0] * 100, shared), _had([1.0] * 100, shared)) is None


def test_with_repeats_the_warnings_say_that_they_are_about_first_answers():
    failed = {str(i): "timeout" for i in range(20)}

    def several(one):
        return replace(one, lines=({}, {}))

    a, late, slow = _had([1.0] * 60), _had(SOME_LATE, failed), _had([9.0] * 60)
    assert " of 60 prompts (first answers) " in str(slower(several(a), several(slow)))
    assert " of 60 first answers of B " in str(uneven(several(a), several(late)))
    said = str(more_failures(several(a), several(late)))
    assert "more_failures: requests for 20 of 30 prompts (first answers) failed" in said
    assert "first" not in str(more_failures(a, late))


RULES = CompareRules(rule=Spec(name="paired"), again=200)
N = 40
SEED = {"temperature": 0.8, "seed": 7}
FREE = {"temperature": 0.8}


@pytest.fixture(scope="module")
def ask():
    """Return a function that compares the embedded model with itself or a damaged form."""

    def compared(out, b, options, repeats):
        async def story():
            context = LaunchContext(model="sound", log_dir=out.parent / "logs")
            forms = embedded.EmbeddedOptions(also={"same": "none", "int3": "int3", "int4": "int4"})
            async with embedded.launch(context, forms) as endpoint:
                task = Spec(name="word_problems", options={"num_samples": N, **options})
                plan = Plan(
                    model="sound",
                    launcher=external(endpoint.base_url),
                    tasks=(task,),
                    repeats=repeats,
                )
                sides = [CompareSide(plan=replace(plan, model=one)) for one in ("sound", b)]
                return await compare(*sides, RULES, out, environ={}, show_flips=200)

        return asyncio.run(story())

    return compared


@pytest.fixture(scope="module")
def seeded(ask, tmp_path_factory):
    out = tmp_path_factory.mktemp("seeded") / "out"
    return ask(out, "int4", SEED, 2), out


def _rows(task):
    rows = (*describe_task(task), *describe_agreement_of(task), *rows_of(summarise_compared(task)))
    return dict(rows)


def test_with_equal_seeds_an_endpoint_is_asked_the_same_seeds_again(
    seeded,
):
    """Repeats 1 and 2 of A have unlike seeds: their difference is no nondeterminism of A."""
    found, out = seeded
    [task] = found.tasks
    assert (task.itself.own, task.itself.own_texts, task.itself.repeats) == (0, 0, None)
    assert task.itself.other_texts
    assert task.own[0].identical == task.own[0].prompts == N
    assert "first answers only, with their seeds" in _rows(task)["noise"]
    assert run_folder.read_plan(out / "again").repeats == 1


def test_all_answers_are_counted_and_the_rows_say_of_how_many(
    seeded,
):
    found, out = seeded
    [task] = found.tasks
    a, b = (read_task(out / one, read_report(out / one), "word_problems") for one in "ab")
    changes = [
        b.lines[run][prompt].value - line.value
        for run in (0, 1)
        for prompt, line in a.lines[run].items()
    ]
    fell, rose = sum(one < 0 for one in changes), sum(one > 0 for one in changes)
    assert a.lines[1].keys() == a.lines[0].keys()
    assert (task.worse, task.better) == (fell, rose)
    assert (task.verdict.paired.down, task.verdict.paired.up) == (fell, rose)
    rows = _rows(task)
    change = next(rows[name] for name in ("drop", "change", "rise") if name in rows)
    assert f"{fell} turned wrong, {rose} turned right of {2 * N} pairs of answers" in change
    same = sum(
        a.said[run][prompt] == b.said[run][prompt] for run in (0, 1) for prompt in a.lines[run]
    )
    assert rows["texts"].startswith(f"{same} of {2 * N} pairs of answers identical")
    assert {flip.id.partition("#")[2] for flip in task.flips} == {"", "2"}
    for flip in task.flips:
        run = 1 if "#" in flip.id else 0
        prompt = find_prompt(a, flip.id)
        assert flip.scores == (a.lines[run][prompt].value, b.lines[run][prompt].value)
        assert flip.divergence is not None


def test_finished_runs_with_equal_seeds_show_no_noise(seeded, tmp_path):
    _, out = seeded
    sides = [CompareSide(plan=run_folder.read_plan(out / one), folder=out / one) for one in "ab"]
    found = asyncio.run(compare(*sides, RULES, tmp_path / "out", environ={}))
    [task] = found.tasks
    assert (task.itself, task.own) == (None, (None, None))
    assert "; not measured: " in _rows(task)["differs"]
    assert "noise" not in _rows(task)


@pytest.fixture(scope="module")
def finished(tmp_path_factory):
    """Compare a finished run with seeds and four repeats with the same server, asked now."""
    folder = tmp_path_factory.mktemp("finished")

    async def story():
        context = LaunchContext(model="sound", log_dir=folder / "logs")
        async with embedded.launch(context, embedded.EmbeddedOptions()) as endpoint:
            plan = Plan(
                model="sound",
                launcher=external(endpoint.base_url),
                tasks=(Spec(name="word_problems", options={"num_samples": N, **SEED}),),
                repeats=4,
                no_reference=True,
            )
            await evaluate(plan, folder / "a", environ={})
            sides = CompareSide(plan=plan, folder=folder / "a"), CompareSide(plan=plan)
            return await compare(*sides, RULES, folder / "out", environ={})

    return asyncio.run(story()), folder


def test_repeats_with_seeds_of_their_own_are_no_disagreement(
    finished,
):
    """B is asked again with equal seeds, A was not: nothing is known of A's steadiness."""
    found, folder = finished
    [task] = found.tasks
    assert (task.itself.endpoint, task.itself.own_texts) == ("B", 0)
    once = read_task(folder / "a", read_report(folder / "a"), "word_problems")
    differing = sum(len({run[prompt].answer for run in once.lines}) > 1 for prompt in once.lines[0])
    assert differing >= 8, "enough for the warning, if unlike seeds counted"
    assert [line for line in found.warnings if line.startswith("unsteady: ")] == []
    assert task.own[0] is None
    assert not any(one.rule == "self_differences" for one in diagnose(folder / "out").between)


@pytest.mark.parametrize(("b", "more"), [("same", False), ("int3", True)])
def test_without_seeds_all_repeats_show_the_noise(ask, tmp_path, b, more):
    [task] = ask(tmp_path / "out", b, FREE, 3).tasks
    assert (task.itself.repeats, task.itself.prompts) == ((3, 3), N)
    assert (task.itself.own_pairs, task.itself.other_pairs) == (3 * N, 9 * N)
    assert task.itself.more is more
    assert any(line.startswith("more_flips: ") for line in task.warnings) is more
    said = f"{N} prompts, 3 answers of A and 3 of B to each: two of A differ in"
    assert _rows(task)["noise"].startswith(said)
    assert not (tmp_path / "out" / "again").exists()
    _check_even_loss(tmp_path / "out", named=more)


def _check_even_loss(out, *, named):
    """Check that a loss of B without a place is named, with the counts of all answers."""
    a, b = (read_task(out / side, read_report(out / side), "word_problems") for side in "ab")
    changes = [
        b.lines[run][prompt].value - line.value
        for run in range(len(a.lines))
        for prompt, line in a.lines[run].items()
    ]
    fell, rose = sum(one < 0 for one in changes), sum(one > 0 for one in changes)
    told = [one.told for one in diagnose(out).between if one.rule == "even_loss"]
    assert len(told) == named
    for line in told:
        assert line.startswith(
            f"B has {fell} answers wrong that A has right, and {rose} the other way round of"
            f" {len(changes)} pairs; "
        )
