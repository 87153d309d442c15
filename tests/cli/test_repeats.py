"""Test prompts that are asked several times, and the figures of repeats.

Scores are averaged, a run is resumable, and the report shows the agreement of the endpoint with
itself.
"""

import asyncio
import csv
import io
import json
from collections import Counter
from dataclasses import replace

import pytest

from serve_eval.errors import DatasetError
from serve_eval.evaluation.evaluate import evaluate, judge_again
from serve_eval.evaluation.results.sample_table import Repeated
from serve_eval.schema import AccuracySpec, Plan, Sample, Spec
from serve_eval.storage import run_folder
from serve_eval.verdicts import references
from serve_eval.workflows.references import register
from tests.cli.command import serve_eval
from tests.json_files import read_json

pytestmark = pytest.mark.usefixtures("simulated_here")

QUESTIONS, REPEATS = 30, 24


@pytest.fixture(scope="module")
def asked(data_root, tmp_path_factory, simulated_here):
    """Return the flags of runs of 30 questions, and a folder with a reference of 24 repeats."""
    folder = tmp_path_factory.mktemp("repeats")
    flags = ["run", "--launcher", "simulated", "--model", "my-org/my-model", "--tasks", "gsm8k"]
    for option in ("accuracy=0.7", "flip_rate=0.2", "seed=5", "varied=true"):
        flags += ["--set", f"launcher.{option}"]
    flags += ["--set", f"gsm8k.num_samples={QUESTIONS}", "--dataset-root", str(data_root)]
    taken = serve_eval(
        *flags, "--no-reference", "--repeats", str(REPEATS), "-o", folder / "first", exits=3
    )
    (folder / "said").write_text(taken.stdout)
    refs = ("--references-dir", str(folder / "refs"))
    serve_eval(
        f"references register {folder}/first",
        *refs,
        exits=0,
        prints=f"the mean of {REPEATS} runs of {QUESTIONS} samples",
    )
    return [*flags, *refs], folder


def _task(out):
    return read_json(out / "report.json")["tasks"][0]


def test_repeats_exclude_a_margin_that_the_questions_alone_cannot(asked, tmp_path):
    """Thirty equal pairs exclude no less than 8.3 points; 24 answers to each question do."""
    flags, _ = asked
    rule = ("--verdict", "noninferiority", "--margin", "8")
    done = serve_eval(
        *flags,
        *rule,
        "--repeats",
        str(REPEATS),
        "--set",
        "launcher.run=1",
        "-o",
        tmp_path / "b",
        exits=0,
    )
    verdict = _task(tmp_path / "b")["verdict"]
    assert verdict["outcome"] == "PASS"
    assert (verdict["paired"]["reference_runs"], verdict["paired"]["candidate_runs"]) == (24, 24)
    text = " ".join(done.stdout.split())
    assert f"on these {QUESTIONS} prompts, {REPEATS} and {REPEATS} answers to each" in text
    assert "against any build of equal accuracy" in text


def test_a_margin_out_of_reach_is_refused_before_anything_is_asked(asked, tmp_path):
    flags, _ = asked
    for rule, repeats, times in (("noninferiority", 1, 9), ("paired", 3, 9)):
        done = serve_eval(
            *flags, "--verdict", rule, "--margin", "1", "--repeats", str(repeats), "-o",
            tmp_path / "out", exits=2
        )  # fmt: skip
        text = " ".join(done.stderr.split())
        assert f"a margin of 1 points is out of reach: {QUESTIONS} prompts" in text
        assert f"--repeats {times}" in text
        assert f"ask {-(-268 // repeats)} prompts or more" in text
        assert not (tmp_path / "out").exists()
    enough = serve_eval(
        *flags, "--verdict", "paired", "--margin", "1", "--repeats", "9", "-o", tmp_path / "out"
    )
    assert enough.returncode != 2, enough.stderr


def test_the_margin_that_a_refusal_names_is_not_refused(asked, tmp_path):
    flags, _ = asked
    rule = ("--verdict", "noninferiority", "--margin")
    refused = serve_eval(*flags, *rule, "8.2", "-o", tmp_path / "out")
    least = refused.stderr.split("set a margin of ")[1].split()[0]
    assert 8.2 < float(least) < 8.3
    assert serve_eval(*flags, *rule, least, "-o", tmp_path / "out").returncode != 2


def test_a_comparison_refuses_it_too(data_root, tmp_path):
    plan = (
        "{model: my-org/my-model, launcher: {simulated: {seed: 5, run: RUN}},"
        f" tasks: [{{gsm8k: {{num_samples: {QUESTIONS}}}}}], dataset_root: ['{data_root}']}}\n"
    )
    for run in "01":
        (tmp_path / f"{run}.yaml").write_text(plan.replace("RUN", run))
    sides = f"{tmp_path}/0.yaml {tmp_path}/1.yaml --self 0"
    serve_eval(
        f"compare --repeats 2 --margin 1 -o {tmp_path}/c {sides}",
        exits=2,
        tells="out of reach: 30 prompts with 2 and 2 answers of the two sides",
    )
    assert not (tmp_path / "c" / "b").exists()


def test_the_line_about_repeats_has_its_errors_ties_and_passes(
    asked,
):
    _, folder = asked
    task = _task(folder / "first")
    told, result = task["result"]["stability"], task["result"]
    shown = " ".join((folder / "said").read_text().split())
    line = (
        f"avg@{REPEATS} = {result['value']:.2f} ± {told['se']:.1f} (SE by question;"
        f" ± {told['se_runs']:.1f} over runs), pass@{REPEATS} ="
        f" {told['pass_at'][str(REPEATS)]:.1f}, maj@{REPEATS} = {told['majority']:.1f}, unanswered"
        f" 0 %, cut 0 of {QUESTIONS * REPEATS}"
    )
    assert line in shown
    assert line in (folder / "first/summary.md").read_text().replace("\\", "")
    page = (folder / "first/report.html").read_text()
    assert line in page
    assert f"{REPEATS} answers to each question" in page
    assert "By question" in page
    table = serve_eval(f"runs export {folder}/first --format table")
    assert line in " ".join(table.stdout.split())
    assert (f"{told['tied']} of {QUESTIONS} prompts tied" in shown) is (told["tied"] > 0)
    assert f"pass@1 {told['pass_at']['1']:.2f}, pass@2" in shown
    assert "pass@3 " not in shown
    assert told["se_runs"] < told["se"]
    low, high = result["interval"]
    assert high - low == pytest.approx(2 * 1.96 * told["se"], rel=0.25)


@pytest.mark.parametrize(
    ("flags", "requests"),
    [
        (("-t", "aime", "--repeats", "usual"), 30 * 16),
        (("-t", "gpqa", "--repeats", "usual"), 10 * 8),
        (("-t", "gsm8k", "--repeats", "usual"), 10),
        (("-t", "aime"), 30),
        (("-t", "aime", "--repeats", "3"), 90),
    ],
)
def test_the_usual_repeats_are_those_of_the_task(flags, requests, data_root):
    few = () if flags[1] == "aime" else ("--limit", "10")
    shown = _show_plan(*flags, *few, root=data_root)
    assert f"task {flags[1]}: {requests} requests" in shown
    named = "--repeats usual asks each prompt 16 times instead of once" in shown
    assert named is (flags == ("-t", "aime"))


def test_a_plan_keeps_the_number_and_takes_the_word_for_one_task(data_root, tmp_path):
    shown = _show_plan("-t", "aime", "--repeats", "usual", root=data_root)
    assert "repeats:\n    aime: 16\n" in shown
    plan = tmp_path / "plan.yaml"
    plan.write_text("{tasks: [aime], repeats: {aime: usual}}")
    assert "task aime: 480 requests" in _show_plan(plan, root=data_root)
    plan.write_text("{tasks: [aime], repeats: {aime: often}}")
    assert "repeats" in _show_plan(plan, root=data_root, code=2)
    assert "expected a number or usual, not 'often'" in _show_plan(
        "-t", "aime", "--repeats", "often", root=data_root, code=2
    )


def _show_plan(*arguments, root, code=0):
    flags = f"-m m --base-url 127.0.0.1:9 --no-reference --dataset-root {root}"
    done = serve_eval(f"run {flags} --dry-run", *arguments, exits=code)
    return done.stdout + done.stderr


TASKS = {"word_problems": 128, "passkey_short": 24}
"""Tasks with their tokens per answer."""


def test_repeats_have_columns_and_are_shown_of_a_pass(tmp_path):
    refs = tmp_path / "refs"
    refs.mkdir()
    for task, tokens in TASKS.items():
        entry = f"{{accuracy: 1, protocol: {{temperature: 0.8, max_tokens: {tokens}}}}}"
        (refs / f"{task}.yaml").write_text(f"org/m:\n  - {entry}\n")
    sizes = [
        f"--set={task}.{option}"
        for task in TASKS
        for option in ("num_samples=12", "temperature=0.8")
    ]
    done = serve_eval(
        f"run --launcher simulated -m org/m --repeats 3 --references-dir {refs} -o {tmp_path}/r -t",
        ",".join(TASKS),
        "--set=launcher.varied=true",
        *sizes,
        COLUMNS="200",
        exits=0,
    )
    assert done.stdout.count("avg@3 = ") == 2
    report = read_json(tmp_path / "r/report.json")
    told = {task["result"]["task"]: task["result"]["stability"] for task in report["tasks"]}
    collected = serve_eval(f"runs table {tmp_path}/r").stdout
    for row in csv.DictReader(io.StringIO(collected, newline="")):
        known = told[row["task"]]
        assert row["repeats"] == "3"
        assert float(row["sd_repeats"]) == pytest.approx(known["sd"], rel=1e-5)
        assert float(row["pass_at_repeats"]) == pytest.approx(known["pass_at"]["3"], rel=1e-5)
        assert float(row["vote"]) == pytest.approx(known["majority"], rel=1e-5)
    exported = serve_eval(f"runs export {tmp_path}/r --format csv").stdout
    [row] = csv.DictReader(io.StringIO(exported, newline=""))
    noted = serve_eval(f"runs export {tmp_path}/r --format table").stdout
    assert "reference: org/m, default (word_problems, passkey_short)" in noted
    for task in TASKS:
        assert row[f"{task} repeats"] == "3"
        assert float(row[f"{task} pass at repeats"]) == pytest.approx(told[task]["pass_at"]["3"])
        assert float(row[f"{task} vote"]) == pytest.approx(told[task]["majority"])


N = 200


@pytest.fixture
def plan(data_root):
    return Plan(
        model="my-org/my-model",
        launcher=Spec(
            name="simulated", options={"accuracy": 0.7, "flip_rate": 0.2, "varied": True}
        ),
        tasks=(Spec(name="gsm8k", options={"num_samples": N}),),
        dataset_roots=(str(data_root),),
        no_reference=True,
        repeats=3,
    )


def _run(plan, folder):
    return asyncio.run(evaluate(plan, folder))


def test_repeats_are_averaged_and_tell_how_stable_the_endpoint_is(plan, tmp_path):
    result = _run(plan, tmp_path / "out").tasks[0].result
    assert (result.planned, result.scored, result.failed) == (3 * N, 3 * N, 0)
    scores = {}
    for line in (tmp_path / "out/scores/gsm8k.jsonl").read_text().splitlines():
        told = json.loads(line)
        scores.setdefault(told["id"].partition("#")[0], []).append(told["value"])
    assert Counter(map(len, scores.values())) == {3: N}
    values = list(scores.values())
    assert result.value == pytest.approx(100 * sum(map(sum, values)) / (3 * N))
    told = result.stability
    assert (told.repeats, told.prompts) == (3, N)
    mixed = sum(0 < sum(v) < 3 for v in values) / N
    assert told.mixed == pytest.approx(mixed)
    assert 0.1 < mixed < 0.5
    pairs = sum((a != b) + (a != c) + (b != c) for a, b, c in values) / (3 * N)
    assert told.flip_rate == pytest.approx(pairs)
    assert told.pass_at["1"] == pytest.approx(result.value)
    assert told.pass_at["3"] == pytest.approx(100 * sum(max(v) for v in values) / N)
    assert told.majority == pytest.approx(100 * sum(sum(v) >= 2 for v in values) / N)


def test_a_finished_run_takes_more_repeats_and_keeps_what_it_had(plan, tmp_path):
    once = _run(replace(plan, repeats=1), tmp_path / "out").tasks[0].result
    assert (once.planned, once.stability) == (N, None)
    first = (tmp_path / "out/samples/gsm8k.jsonl").read_bytes()
    twice = _run(replace(plan, repeats=2), tmp_path / "out").tasks[0].result
    assert twice.planned == twice.scored == 2 * N
    assert (tmp_path / "out/samples/gsm8k.jsonl").read_bytes().startswith(first)
    lines = (tmp_path / "out/samples/gsm8k.jsonl").read_bytes().splitlines()
    assert len({json.loads(line)["id"] for line in lines}) == len(lines) == 2 * N
    kept = judge_again(run_folder.read_plan(tmp_path / "out"), tmp_path / "out")
    assert kept.tasks[0].result == twice


def test_each_repeat_is_a_run_of_a_reference_and_of_a_comparison(plan, tmp_path):
    _run(plan, tmp_path / "reference")
    (registered,) = register([tmp_path / "reference"], tmp_path / "refs")
    assert registered.runs == 3
    assert [line for line in registered.warnings if "differ as a whole" not in line] == [
        "200 of 1319 samples: detects only drops of 12.4 points or more",
        "the runs were simulated: this reference says nothing about any model",
    ]  # one in twenty orders makes the runs seem to differ
    found = references.find("gsm8k", "my-org/my-model", AccuracySpec(), [tmp_path / "refs"])
    assert (found.runs.n, len(found.runs.values)) == (N, 3)
    options = {**plan.launcher.options, "run": 1}
    judged = replace(
        plan,
        launcher=Spec(name="simulated", options=options),
        no_reference=False,
        references_dir=str(tmp_path / "refs"),
        repeats=2,
    )
    verdict = _run(judged, tmp_path / "out").tasks[0].verdict
    assert (verdict.paired.reference_runs, verdict.paired.candidate_runs, verdict.paired.pairs) == (
        3,
        2,
        N,
    )
    assert verdict.num_samples == N
    early = (
        _run(replace(judged, early_stop=0.01, rule_named=True), tmp_path / "early").tasks[0].verdict
    )
    assert early.early.planned == 2 * N


def test_ids_that_look_like_repeats_are_refused():
    samples = [Sample(id="a#2", prompt="p", target="t")]
    assert [sample.id for sample in Repeated(samples, 1)] == ["a#2"]
    with pytest.raises(DatasetError, match="'a#2' looks like that of a repeat"):
        Repeated(samples, 2)


def test_the_repeats_are_a_sequence():
    repeated = Repeated([Sample(id=str(i), prompt="p", target="t") for i in range(2)], 2)
    assert [sample.id for sample in repeated] == ["0", "1", "0#2", "1#2"]
    assert [sample.id for sample in repeated[1:3]] == ["1", "0#2"]
    assert repeated[-1].id == "1#2"
    with pytest.raises(IndexError):
        repeated[4]
