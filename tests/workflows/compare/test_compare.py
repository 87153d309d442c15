"""Comparisons of two endpoints: equal ones pass, a worse one is proven and its flips are listed."""

import asyncio
import io
import json
import re
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import replace

import pytest
from rich.console import Console
from scipy.stats import binom

from serve_eval.errors import NoRoomError, NotComparableError, RunFolderError
from serve_eval.evaluation.launch import _write_answers
from serve_eval.evaluation.prepare import prepare
from serve_eval.launchers._simulated.simulator import STATS, SimulatorConfig, create_app, serve
from serve_eval.launchers.simulated import probability
from serve_eval.report.document import print_document
from serve_eval.report.summary import rows_of
from serve_eval.schema import Endpoint, Limits, Plan, Spec
from serve_eval.storage import run_folder
from serve_eval.storage.report_file import read_report
from serve_eval.verdicts.exit_code import FAIL, PASS, UNDECIDED
from serve_eval.workflows.compare import asking
from serve_eval.workflows.compare.compare import CompareRules, CompareSide, compare
from serve_eval.workflows.compare.document import make_document
from serve_eval.workflows.compare.rows import describe_agreement_of, summarise_compared
from serve_eval.workflows.compare.verdict import compare_folders
from tests.cli.command import serve_eval
from tests.json_files import read_json
from tests.scripted_server import ScriptedServer, answer, external

pytestmark = pytest.mark.usefixtures("simulated_here")

N = 150
PAIRED = CompareRules(rule=Spec(name="paired"), again=60)


@pytest.fixture(scope="module")
def plan(data_root):
    return Plan(
        model="simulated",
        launcher=external("http://127.0.0.1:1/v1"),
        tasks=(Spec(name="gsm8k"),),
        dataset_roots=(str(data_root),),
        limit=N,
        limits=Limits(concurrency=8),
    )


@pytest.fixture(scope="module")
def answers(plan, tmp_path_factory):
    """Return a function that writes a file of answers, of which 80 % are right.

    Its argument is the share of prompts that two runs judge differently.
    """
    prepared = prepare(replace(plan, no_reference=True))

    def of(flip_rate):
        path = tmp_path_factory.mktemp("answers") / "answers.jsonl"
        _write_answers(path, prepared, probability(0.8, flip_rate, 0))
        return path

    return of


@pytest.fixture(scope="module")
def steady(answers):
    """Return an endpoint that judges 3 % of the prompts differently each time."""
    return SimulatorConfig(answers=answers(0.03), varied=True)


def _compare(
    plan,
    a,
    b,
    out,
    rules=PAIRED,
    **more,
):
    """Compare two simulated endpoints; return the comparison and each one's number of requests."""
    apps = [create_app(config) for config in (a, b)]

    async def both():
        async with AsyncExitStack() as stack:
            urls = [await stack.enter_async_context(serve(app)) for app in apps]
            sides = [CompareSide(plan=_at(plan, url)) for url in urls]
            return await compare(sides[0], sides[1], rules, out, environ={}, **more)

    return asyncio.run(both()), [_asked(app) for app in apps]


def _at(plan, url):
    return replace(plan, launcher=external(url))


def _asked(app):
    return sum(app[STATS].requests.values())


@pytest.fixture(scope="module")
def alike(plan, steady, tmp_path_factory):
    out = tmp_path_factory.mktemp("alike") / "out"
    found, asked = _compare(plan, replace(steady, run=1), replace(steady, run=3), out)
    assert asked[1] >= N + PAIRED.again
    assert asked[0] >= N + PAIRED.again
    return found, out


@pytest.fixture(scope="module")
def damaged(plan, steady, tmp_path_factory):
    out = tmp_path_factory.mktemp("damaged") / "out"
    found, _ = _compare(
        plan, replace(steady, run=1), replace(steady, run=2, damage=0.4), out, show_flips=500
    )
    return found, out


def test_what_is_alike_is_not_accused(alike):
    comparison, _ = alike
    [task] = comparison.tasks
    assert (comparison.exit_code, task.verdict.outcome) == (PASS, "PASS")
    assert task.verdict.paired.finding == "PASS"
    assert (task.itself.endpoint, task.itself.prompts, task.itself.more) == (
        "A",
        PAIRED.again,
        False,
    )
    assert task.agreement.prompts == N
    assert task.apart_s is not None


def test_a_worse_one_is_proven_and_its_flips_are_listed(damaged):
    comparison, out = damaged
    [task] = comparison.tasks
    assert (comparison.exit_code, task.verdict.outcome) == (FAIL, "FAIL")
    assert task.itself.more
    assert any(warning.startswith("more_flips: ") for warning in task.warnings)
    values = [_values(out / side) for side in ("a", "b")]
    worse = {i for i in values[0] if values[0][i] > values[1][i]}
    better = {i for i in values[0] if values[0][i] < values[1][i]}
    assert (task.worse, task.better) == (len(worse), len(better))
    assert [flip.id in worse for flip in task.flips] == [True] * len(worse) + [False] * len(better)
    assert {flip.id for flip in task.flips} == worse | better
    flip = task.flips[0]
    assert "not sure" in flip.texts[1]
    place = flip.first_difference.character
    assert flip.texts[0][:place] == flip.texts[1][:place]
    assert flip.texts[0][place] != flip.texts[1][place]
    assert (flip.divergence.kind, flip.divergence.why) == (
        "unknown",
        "the answer has no log-probabilities",
    )


def _values(folder):
    lines = (folder / "scores" / "gsm8k.jsonl").read_text().splitlines()
    return {line["id"]: line["value"] for line in map(json.loads, lines)}


def test_more_flips_both_ways_are_no_drop(plan, answers, tmp_path):
    """A repeats its answers; B differs on an eighth of the prompts, as often better as worse."""
    settled = SimulatorConfig(answers=answers(0.13))
    found, _ = _compare(
        plan,
        replace(settled, run=1),
        replace(settled, run=2),
        tmp_path / "out",
        replace(PAIRED, again=N),
    )
    [task] = found.tasks
    assert task.verdict.outcome != "FAIL"
    assert (task.itself.own, task.itself.more) == (0, True)
    assert min(task.worse, task.better) > N // 30


def test_a_finished_comparison_asks_nothing_and_says_the_same(plan, steady, alike):
    before, out = alike
    urls = [side.base_url for side in (before.a, before.b)]
    sides = [CompareSide(plan=_at(plan, url)) for url in urls]  # the servers are gone
    after = asyncio.run(compare(sides[0], sides[1], PAIRED, out, environ={}))
    [told] = after.warnings
    assert told.startswith("nothing was asked: every answer was already in the folder")
    same = {"started_at": "", "wall_s": 0.0, "warnings": ()}
    assert replace(after, **same) == replace(before, **same)


def test_another_margin_is_refused_when_the_answers_are_known(plan, alike):
    before, out = alike
    sides = [CompareSide(plan=_at(plan, side.base_url)) for side in (before.a, before.b)]
    wider = replace(PAIRED, rule=Spec(name="paired", options={"margin": 20.0}))
    with pytest.raises(RunFolderError, match="margin"):
        asyncio.run(compare(sides[0], sides[1], wider, out, environ={}))


def test_runs_that_were_interrupted_go_on_and_end_as_if_they_had_not_been(plan, steady, tmp_path):
    """Each prompt has one answer at each endpoint, so that the number of requests does not matter.

    Flips are listed in the order of the answers, so both comparisons list the same ones.
    """
    plan = replace(plan, limits=replace(plan.limits, order_seed=7))
    a, b = (
        replace(steady, varied=False, run=run, damage=damage)
        for run, damage in ((1, 0.0), (2, 0.2))
    )
    whole, _ = _compare(plan, a, b, tmp_path / "whole")

    apps = [create_app(config) for config in (a, b)]

    async def twice():
        async with AsyncExitStack() as stack:
            urls = [await stack.enter_async_context(serve(app)) for app in apps]
            sides = [CompareSide(plan=_at(plan, url)) for url in urls]
            stops = _Stops(lambda: running.cancel())
            running = asyncio.create_task(
                compare(sides[0], sides[1], PAIRED, tmp_path / "out", environ={}, progress=stops)
            )
            with pytest.raises(asyncio.CancelledError):
                await running
            had = [
                len(list((tmp_path / "out" / side / "samples").glob("*"))) for side in ("a", "b")
            ]
            assert had == [1, 1]
            assert not (tmp_path / "out" / "a" / "report.json").exists()
            return await compare(sides[0], sides[1], PAIRED, tmp_path / "out", environ={})

    resumed = asyncio.run(twice())
    [one], [other] = whole.tasks, resumed.tasks
    assert (one.verdict, one.flips, one.agreement) == (other.verdict, other.flips, other.agreement)
    assert one.itself == other.itself
    assert max(_asked(app) for app in apps) < 2 * N + PAIRED.again


class _Stops:
    """Progress that calls `stop` at the first update from the hundredth answer on."""

    def __init__(self, stop):
        self._stop, self._stopped = stop, False

    def begin(self, task, planned, had): ...

    def end(self, task): ...

    def update(self, task, done, failed, value):
        if done >= 100 and not self._stopped:
            self._stopped = True
            self._stop()


def test_anchors_of_one_run_are_refused_before_anything_is_sent(plan, tmp_path):
    rules = CompareRules(rule=Spec(name="anchors"), again=0)
    sides = (
        CompareSide(plan=_at(plan, "http://127.0.0.1:9")),
        CompareSide(plan=_at(plan, "http://127.0.0.1:9")),
    )
    with pytest.raises(NotComparableError, match="answer each prompt at least 2 times") as caught:
        asyncio.run(compare(*sides, rules, tmp_path / "out", environ={}))
    assert "--repeats 2" in caught.value.hint


def test_sides_that_ask_otherwise_are_refused_before_anything_is_sent(plan, steady, tmp_path):
    app = create_app(steady)

    async def both():
        async with serve(app) as url:
            other = replace(plan, tasks=(Spec(name="gsm8k", options={"num_fewshot": 2}),))
            sides = CompareSide(plan=_at(plan, url)), CompareSide(plan=_at(other, url))
            await compare(*sides, PAIRED, tmp_path / "out", environ={})

    with pytest.raises(NotComparableError, match=r"gsm8k: num_fewshot is 5 for A and 2 for B"):
        asyncio.run(both())
    assert _asked(app) == 0
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize("finished", ["A", "B"])
def test_a_finished_run_is_asked_nothing_and_the_other_side_is(
    plan,
    steady,
    alike,
    tmp_path,
    finished,
):
    before, out = alike
    app = create_app(replace(steady, run=3))

    async def one():
        async with serve(app) as url:
            live = CompareSide(plan=_at(plan, url))
            done = CompareSide(plan=run_folder.read_plan(out / "a"), folder=out / "a")
            sides = (done, live) if finished == "A" else (live, done)
            return await compare(*sides, PAIRED, tmp_path / "out", environ={})

    [task] = asyncio.run(one()).tasks
    assert _asked(app) >= N + PAIRED.again
    assert (task.a if finished == "A" else task.b) == before.tasks[0].a
    assert task.itself.endpoint == {"A": "B", "B": "A"}[finished]
    assert task.verdict.outcome == "PASS"
    assert not (tmp_path / "out" / finished.lower()).exists()


def test_repeats_tell_what_second_answers_would(plan, steady, tmp_path):
    twice = replace(plan, limit=40, repeats=2)
    found, asked = _compare(twice, replace(steady, run=1), replace(steady, run=2), tmp_path / "out")
    [task] = found.tasks
    assert not (tmp_path / "out" / "again").exists()
    assert task.itself.prompts == 40
    assert (task.verdict.paired.reference_runs, task.verdict.paired.candidate_runs) == (2, 2)
    assert min(asked) >= 80
    told = [
        text.partition(": ")[0]
        for label, text in (*rows_of(summarise_compared(task)), *describe_agreement_of(task))
        if label == "repeats"
    ]
    assert told == ["B", "A"]


def test_tasks_that_a_context_server_answers_alone_are_told(plan, steady, alike, tmp_path):
    assert alike[0].warnings == ()
    short = replace(plan, limit=10, tasks=(Spec(name="gsm8k", options={"max_tokens": 2}),))
    found, _ = _compare(short, replace(steady, run=1), replace(steady, run=2), tmp_path / "out")
    assert ["the generation servers are not tested" in line for line in found.warnings] == [True]


def test_noninferiority_says_what_the_prompts_leave_open(alike):
    _, out = alike
    found = compare_folders(
        out / "a", out / "b", Spec(name="noninferiority", options={"margin": 0.5})
    )
    assert (found.exit_code, found.tasks[0].verdict.outcome) == (UNDECIDED, "INCONCLUSIVE")
    assert (
        compare_folders(
            out / "a", out / "b", Spec(name="noninferiority", options={"margin": 30.0})
        ).exit_code
        == PASS
    )


def test_flips_of_a_hold_out_set_are_counted_and_not_listed(
    damaged,
):
    comparison, out = damaged
    [all_shown] = comparison.tasks
    secret = frozenset(("gsm8k", flip.id) for flip in all_shown.flips[:3])
    [task] = compare_folders(
        out / "a", out / "b", Spec(name="paired"), show_flips=500, hidden=secret
    ).tasks
    assert (task.worse, task.better) == (all_shown.worse, all_shown.better)
    assert [flip.id for flip in task.flips] == [flip.id for flip in all_shown.flips[3:]]
    assert "3 flips belong to a hold-out set and are not listed" in task.warnings


def test_servers_that_do_not_fit_together_are_asked_one_after_the_other(
    plan, steady, tmp_path, monkeypatch
):
    """One GPU for two servers: the second is refused while the first holds it."""
    up = []
    history = []
    said = []

    @asynccontextmanager
    async def launch(plan, prepared, folder, notify):
        if up:
            raise NoRoomError("GPU 0 is used by another launch")
        up.append(folder.name)
        history.append(folder.name)
        try:
            async with serve(replace(steady, run=len(history))) as url:
                yield Endpoint(base_url=url, model=plan.model)
        finally:
            up.remove(folder.name)

    monkeypatch.setattr(asking, "launch", launch)
    sides = (
        CompareSide(plan=_at(plan, "http://127.0.0.1:1/v1")),
        CompareSide(plan=_at(plan, "http://127.0.0.1:2/v1")),
    )
    found = asyncio.run(compare(*sides, PAIRED, tmp_path / "out", environ={}, notify=said.append))
    assert history == ["a", "a", "b"]
    assert [
        task.result.scored
        for task in map(_only_task, (tmp_path / "out" / "a", tmp_path / "out" / "b"))
    ] == [N, N]
    assert any(
        line.startswith(
            "A and B are asked one after the other, since both do not fit at once: GPU 0"
        )
        for line in said
    )
    assert found.tasks[0].itself is not None


def _only_task(folder):
    return read_report(folder).tasks[0]


def test_the_command_compares_finished_runs(damaged, tmp_path):
    _, out = damaged
    said = serve_eval(
        f"compare {out}/a {out}/b -o {tmp_path}/again --margin 2 -v",
        exits=FAIL,
        prints="a drop of 2.000 points is not excluded",
    )
    assert "turned wrong" in said.stdout
    assert "detects only drops" not in said.stdout
    told = read_json(tmp_path / "again" / "comparison.json")
    assert told["rule"] == {"name": "paired", "options": {"margin": 2.0}}
    swapped = serve_eval(f"compare {out}/b {out}/a -o {tmp_path}/swapped --json", exits=PASS)
    assert json.loads(swapped.stdout)["result"]["tasks"][0]["worse"] == told["tasks"][0]["better"]


def test_the_command_asks_an_endpoint_what_the_other_side_was_asked(damaged, tmp_path):
    """Compare a plan file, which starts its endpoint, with a run."""
    _, out = damaged
    saved = run_folder.read_plan(out / "a")
    (tmp_path / "plan.yaml").write_text(
        json.dumps(
            {
                "model": "simulated",
                "launcher": {"name": "simulated", "accuracy": 0.1},
                "tasks": ["gsm8k"],
                "dataset_root": list(saved.dataset_roots),
                "limit": N,
            }
        )
    )
    serve_eval(f"compare {out}/a {tmp_path}/plan.yaml -o {tmp_path}/out --self 0", exits=FAIL)
    assert (tmp_path / "out" / "b" / "report.json").exists()
    assert not (tmp_path / "out" / "again").exists()


@pytest.mark.parametrize(
    ("options", "route"),
    [
        ([], "/v1/completions"),
        (["--set", "protocol.apply_chat_template=true"], "/v1/chat/completions"),
        (["--set", "gsm8k.apply_chat_template=true"], "/v1/chat/completions"),
        (
            [
                "--set",
                "gsm8k.apply_chat_template=false",
                "--set",
                "protocol.apply_chat_template=false",
            ],
            "/v1/completions",
        ),
    ],
)
@pytest.mark.parametrize("command", ["compare", "check invariants"])
def test_the_chat_template_is_an_option_of_the_command(
    data_root, tmp_path, command, options, route
):
    routes = ["/v1/completions", "/v1/chat/completions"]
    server, other = (ScriptedServer(answer("The answer is 4."), paths=routes) for _ in "ab")
    with server.serve_in_thread() as url, other.serve_in_thread() as other_url:
        sides = [url, other_url] if command == "compare" else [url]
        more = ["--tasks", "gsm8k", "--dataset-root", data_root, "--limit", "2", "--model", "m"]
        more += ["--self", "0"] if command == "compare" else ["--set", "invariants.chunk_tokens=0"]
        said = serve_eval(*command.split(), *sides, *more, *options, "-o", tmp_path / "out")
    assert (tmp_path / "out").exists(), said.stderr
    chat = route == "/v1/chat/completions"
    assert {request.chat for request in server.asked[-2:]} == {chat}
    first = tmp_path / "out" / ("a" if command == "compare" else "base")
    asked = run_folder.read_fingerprints(first)["gsm8k"]
    assert asked["apply_chat_template"] == json.dumps(chat)


@pytest.mark.parametrize(
    ("arguments", "code", "message"),
    [
        ("--verdict classic", 2, "does not compare pairs"),
        ("--margin -1", 2, "above 0"),
        ("--self -1", 2, "--self must be 0 or more"),
    ],
)
def test_what_cannot_be_meant_is_refused(alike, tmp_path, arguments, code, message):
    _, out = alike
    serve_eval(f"compare {out}/a {out}/b -o {tmp_path}/out {arguments}", exits=code, tells=message)


def test_what_differs_of_the_servers_and_their_hidden_retries_stands_side_by_side(
    alike,
):
    found, out = alike
    servers = {"context servers": "1: version 1, tp 2", "generation servers": "1: version 1, tp 1"}
    a = replace(found.a, servers={**servers, "generation servers": "1: version 1, tp 2"})
    b = replace(found.b, servers=servers, hidden_retries={"context": 3, "generation": 0})
    console = Console(file=io.StringIO(), record=True, width=300)
    print_document(make_document(replace(found, a=a, b=b), out), console, verbose=True)
    lines = console.export_text().splitlines()
    assert [line for line in lines if "servers:" in line] == [
        " A        generation servers: 1: version 1, tp 2",
        " B        generation servers: 1: version 1, tp 1",
    ]
    assert (
        " retries  hidden retries of the orchestrator, A | B: not counted | context 3, generation 0"
        in lines
    )


def test_a_warning_is_called_one_once(alike):
    found, out = alike
    warned = replace(found, b=replace(found.b, warnings=("no KV moved",)), warnings=("it is cold",))
    console = Console(file=io.StringIO(), record=True, width=300)
    print_document(make_document(warned, out), console, verbose=True)
    lines = console.export_text().splitlines()
    assert [line for line in lines if "warning" in line][-2:] == [
        " warning  B: no KV moved",
        " warning  it is cold",
    ]


def test_of_a_case_what_was_expected_is_printed_and_not_how_it_is_scored(
    damaged,
):
    found, out = damaged
    task = found.tasks[0]
    target = '{"expected":{"answer":"Paris"},"options":{},"scorer":"words"}'
    flips = (replace(task.flips[0], target=target),)
    console = Console(width=200, record=True, file=io.StringIO())
    print_document(
        make_document(
            replace(found, tasks=(replace(task, task="cases:capitals", flips=flips),)), out
        ),
        console,
        verbose=True,
    )
    assert 'expected {"answer":"Paris"}' in console.export_text()


@pytest.mark.slow
def test_a_healthy_pair_is_accused_no_more_often_than_alpha_says(plan, steady, tmp_path):
    """Run 200 comparisons with 3 % of flips, for FAIL at .05 and for more flips at .01."""
    failed = more = 0
    small = replace(plan, limit=60)
    for seed in range(200):
        a, b = (replace(steady, run=2 * seed + side, seed=seed) for side in (0, 1))
        found, _ = _compare(small, a, b, tmp_path / str(seed), show_flips=0)
        [task] = found.tasks
        failed += task.verdict.outcome == "FAIL"
        more += task.itself.more
    print(f"of 200 healthy pairs {failed} FAIL, {more} with more flips")
    assert failed <= binom.ppf(0.999, 200, 0.05)
    assert more <= binom.ppf(0.999, 200, 0.01)


def test_several_tasks_say_each_what_a_single_one_says(tmp_path):
    for name, damage in (("a", "0"), ("b", "0.4")):
        done = serve_eval(
            "run --launcher simulated -m m -t word_problems,passkey_short --limit 40"
            f" --no-reference --set launcher.damage={damage} -o {tmp_path}/{name}",
            exits=3,
        )
    done = serve_eval(f"compare {tmp_path}/a {tmp_path}/b -o {tmp_path}/c -v", exits=FAIL)
    heads = done.stdout.splitlines()[2].split()
    assert heads == ["verdict", "task", "B", "95", "%", "A", "change", "fails"]
    for task in ("word_problems", "passkey_short"):
        assert re.search(rf"^ drop     {task}: .* prompts\); ", done.stdout, re.MULTILINE)
        assert f"\n rule     {task}: paired (default); classic would say" in done.stdout
