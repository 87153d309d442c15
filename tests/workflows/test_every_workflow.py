"""Test memory, pictures and sums of errors through every workflow."""

import asyncio
import gc
import math
import re
import tracemalloc
from dataclasses import replace
from functools import partial
from html import unescape
from importlib.util import find_spec
from pathlib import Path

import pytest

from serve_eval.evaluation.evaluate import evaluate
from serve_eval.evidence.answer_pairs import read_task
from serve_eval.evidence.score_pairs import score_pairs
from serve_eval.protocol.shared import build_task
from serve_eval.schema import Plan, Shard, Spec, VerdictOutcome
from serve_eval.storage.report_file import read_report
from serve_eval.storage.scores import read_scores
from serve_eval.verdicts import references
from serve_eval.workflows.compare.verdict import compare_folders
from serve_eval.workflows.diagnose.evidence import read
from serve_eval.workflows.export import export
from serve_eval.workflows.merge import merge, plan_of_whole, read_shards
from serve_eval.workflows.references import register
from serve_eval.workflows.rescore import rescore
from tests.cli.command import serve_eval
from tests.tasks.made_data import write_voxpopuli

NEEDS_MEDIA = pytest.mark.skipif(find_spec("jiwer") is None, reason="needs the extra media")

pytestmark = pytest.mark.usefixtures("simulated_here")


SMALL, LARGE = 500, 2500
ARMS = {
    "a": {},
    "b": {"damage": 0.1},
    "shard1": {"shard": Shard(1, 2)},
    "shard2": {"shard": Shard(2, 2)},
}


def _ask(folder, samples, *, damage=0.0, **more):
    options = {"accuracy": 0.8, "damage": damage}
    task = Spec(name="word_problems", options={"num_samples": samples})
    plan = Plan(
        model="m",
        launcher=Spec(name="simulated", options=options),
        tasks=(task,),
        no_reference=True,
        **more,
    )
    asyncio.run(evaluate(plan, folder, environ={}))


@pytest.fixture(scope="module")
def runs(tmp_path_factory):
    """Return a folder for each size, with a run of each arm."""
    found = {size: tmp_path_factory.mktemp(str(size)) for size in (SMALL, LARGE)}
    for size, folder in found.items():
        for name, arm in ARMS.items():
            _ask(folder / name, size, **arm)
    return found


def _compare(runs, to):
    compare_folders(runs / "a", runs / "b", Spec(name="paired"), show_flips=5)


def _diagnose(runs, to):
    # The samples of both sides; the tests of slices have bounds of their own.
    both = [read(runs / side) for side in "ab"]
    assert both[0].tasks[0].lost


def _export(runs, to):
    export(runs / "a", to)


def _merge(runs, to):
    shards = read_shards([runs / "shard1", runs / "shard2"])
    merge(shards, plan_of_whole(shards), to)


def _rescore(runs, to):
    rescore(runs / "a")


def _peak(work):
    gc.collect()
    tracemalloc.start()
    try:
        work()
        return tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()


@pytest.mark.slow
@pytest.mark.usefixtures("simulated_here")
@pytest.mark.parametrize(
    ("story", "most"),
    [(_compare, 1600), (_diagnose, 2900), (_export, 2500), (_merge, 2600), (_rescore, 2200)],
)
def test_memory_grows_by_few_bytes_per_sample(story, most, runs, tmp_path):
    """The samples of the data set count too, about 900 bytes each."""
    story(runs[SMALL], tmp_path / "first")  # imports modules and fills caches
    small, large = (
        _peak(partial(story, runs[size], tmp_path / str(size))) for size in (SMALL, LARGE)
    )
    grown = (large - small) / (LARGE - SMALL)
    assert grown < most, f"{grown:.0f} bytes per sample"


TASKS = ("word_problems", "passkey_short", "tool_calls")
PRODUCERS = {
    "report/run/page_blocks.py",
    "workflows/drift.py",
    "workflows/compare/document.py",
    "workflows/load/document.py",
    "workflows/suite/page_blocks.py",
    "workflows/verify/document.py",  # distances of the probes of one server, which have no task
    "workflows/view/document.py",
    "workflows/view/listing.py",  # fields of the breakdown of a task, as in compare
    "workflows/watch/document.py",  # a watch refuses more than one task
}
RUNS = 5


@pytest.fixture(scope="module")
def pages(tmp_path_factory, simulated_here):
    """Return a folder with pages of a run, a suite, a comparison, loads, a view and a drift."""
    top = tmp_path_factory.mktemp("pages")
    runs = "\n".join(
        f"    - {{label: build-{i}, launcher: {{name: simulated, damage: 0.{i}}},"
        f" attributes: {{bits: {16 - 2 * i}, cache: {'fp8' if i % 2 else 'bf16'}}}}}"
        for i in range(RUNS)
    )
    (top / "nightly.yaml").write_text(
        "defaults: {model: org/llama-8b, limit: 24, no_reference: true,"
        f" tasks: [{', '.join(TASKS)}]}}\nmatrix:\n  build:\n{runs}\n"
    )
    serve_eval(f"run {top}/nightly.yaml -o {top}/suite", exits=3)
    serve_eval(
        f"run --launcher simulated -m org/llama-8b --limit 24 --no-reference -o {top}/run -t",
        ",".join(TASKS),
        exits=3,
    )
    a, b = (top / f"suite/runs/build-{i}" for i in (0, 4))
    assert serve_eval(f"compare {a} {b} -o {top}/compare").returncode in (0, 1, 3)
    (top / "plan.yaml").write_text("model: org/llama-8b\nlauncher: {name: simulated}\n")
    load = serve_eval(
        f"check load {top}/plan.yaml -t word_problems,tool_calls --limit 12 --concurrency 1,4"
        f" -o {top}/load"
    )
    assert (top / "load/report.html").exists(), load.stderr
    serve_eval(f"runs view {top}/suite -o {top}/view.html", exits=0)
    drift = serve_eval(f"runs trend {top}/suite -o {top}/drift.html")
    assert (top / "drift.html").exists(), drift.stderr
    return top


def _list_figures(page):
    """Return the title and the labels of the bars of each picture of a page."""
    html = page.read_text()
    return [
        (
            unescape(re.findall(r"<figcaption>(.*?)</figcaption>", figure)[0]),
            [unescape(label) for label in re.findall(r"<dt>(.*?)</dt>", figure)],
        )
        for figure in re.findall(r"<figure>(.*?)</figure>", html, re.DOTALL)
    ]


def test_every_picture_shows_one_task(pages):
    found = {page: _list_figures(page) for page in sorted(pages.rglob("*.html"))}
    names = {str(page.relative_to(pages)) for page, figures in found.items() if figures}
    stories = {f"{story}/report.html" for story in ("run", "suite", "compare", "load")}
    assert stories | {"view.html", "drift.html"} <= names
    for page, figures in found.items():
        for title, labels in figures:
            named = [task for task in TASKS if task in title]
            assert len(named) == 1, (page.name, title)
            others = [task for task in TASKS if task not in title]
            assert not [x for x in labels for task in others if task in x], (page, title)


def test_a_picture_of_a_suite_has_each_run_once(pages):
    figures = _list_figures(pages / "suite/report.html")
    over = [(title, labels) for title, labels in figures if "value by bits" in title]
    assert len(over) == len(TASKS)
    assert all(len(labels) == len({*labels}) == RUNS for _, labels in over)
    assert len([title for title, _ in figures if "value by cache" in title]) == len(TASKS)


def test_a_watch_takes_one_task(tmp_path):
    serve_eval(
        f"watch http://127.0.0.1:9 -o {tmp_path}/w -t",
        ",".join(TASKS[:2]),
        exits=2,
        tells="a watch takes one task, not 2",
    )


def test_every_maker_of_pictures_is_walked_here():
    """A new page with pictures needs a line in PRODUCERS, and its pages above."""
    top = Path(__file__).parents[2] / "serve_eval"
    users = {
        str(file.relative_to(top))
        for file in top.rglob("*.py")
        if "PictureSection(" in file.read_text() and file.name != "content.py"
    }
    assert users == PRODUCERS


ALL, MODEL = 40, "my-org/my-model"


@pytest.fixture(scope="module")
def plan(tmp_path_factory):
    root = tmp_path_factory.mktemp("data")
    write_voxpopuli(root / "voxpopuli", ALL)
    return Plan(
        model=MODEL,
        launcher=Spec(name="simulated", options={"accuracy": 0.9}),
        tasks=(Spec(name="voxpopuli", options={"num_samples": ALL}),),
        dataset_roots=(str(root),),
        no_reference=True,
    )


@pytest.fixture(scope="module")
def runs_sums(plan, tmp_path_factory):
    """Return a folder with the runs a and b, of which b makes more errors."""
    folder = tmp_path_factory.mktemp("runs")
    _run(plan, folder / "a", 0.9)
    _run(plan, folder / "b", 0.3)
    return folder


def _run(plan, folder, accuracy):
    options = {**plan.launcher.options, "accuracy": accuracy}
    return asyncio.run(
        evaluate(
            replace(plan, launcher=Spec(name="simulated", options=options)), folder, environ={}
        )
    )


def _rate(folder):
    """Return the errors per 100 words, from the file of scores."""
    parts = [score.parts for score in read_scores(folder, "voxpopuli").values()]
    return 100.0 * sum(one["edits"] for one in parts) / sum(one["words"] for one in parts)


@NEEDS_MEDIA
@pytest.mark.usefixtures("simulated_here")
def test_the_value_is_that_of_all_words_and_its_interval_is_over_speakers(runs_sums):
    (task,) = read_report(runs_sums / "a").tasks
    assert task.result.value == pytest.approx(_rate(runs_sums / "a"))
    scores = list(read_scores(runs_sums / "a", "voxpopuli").values())
    named = [score.group for score in scores if isinstance(score.group, str)]
    assert len(set(named)) == 12
    assert len(scores) - len(named) == 3  # their speaker is not known
    sums = {}
    for score in scores:
        one = sums.setdefault(str(score.group or score.id), [0.0, 0.0])
        one[0] += score.parts["edits"]
        one[1] += score.parts["words"]
    edits, words = (sum(one[i] for one in sums.values()) for i in (0, 1))
    without = [(edits - e) / (words - w) for e, w in sums.values()]
    g, mean = len(without), sum(without) / len(without)
    error = math.sqrt((g - 1) / g * sum((one - mean) ** 2 for one in without))
    from scipy.special import stdtrit

    half = float(stdtrit(g - 1, 0.975)) * error
    low, high = 100.0 * max(0.0, edits / words - half), 100.0 * (edits / words + half)
    assert task.result.interval == pytest.approx((low, high))


@NEEDS_MEDIA
@pytest.mark.usefixtures("simulated_here")
def test_compare_pairs_the_errors_of_each_utterance_by_speaker(runs_sums):
    comparison = compare_folders(runs_sums / "a", runs_sums / "b", Spec(name="paired"))
    verdict = comparison.tasks[0].verdict
    assert verdict.paired.difference == pytest.approx(
        _rate(runs_sums / "a") - _rate(runs_sums / "b")
    )
    assert verdict.outcome is VerdictOutcome.FAIL
    sides = [
        read_task(runs_sums / side, read_report(runs_sums / side), "voxpopuli") for side in "ab"
    ]
    pairs = score_pairs(*sides, build_task(sides[0].task.spec, "t").aggregation.sums)
    assert (pairs.n, pairs.units) == (ALL, 15)  # twelve speakers and three utterances


@NEEDS_MEDIA
@pytest.mark.usefixtures("simulated_here")
def test_a_registered_reference_keeps_the_sums_of_each_utterance(plan, runs_sums, tmp_path):
    (registered,) = register([runs_sums / "a"], tmp_path / "refs")
    assert registered.value == pytest.approx(_rate(runs_sums / "a"))
    text = (tmp_path / "refs/voxpopuli.yaml").read_text()
    assert f"wer: {registered.value}" in text
    judged = replace(
        plan,
        no_reference=False,
        references_dir=str(tmp_path / "refs"),
        verdict=Spec(name="paired"),
        early_stop=0.01,
    )
    (task,) = _run(judged, tmp_path / "out", 0.3).tasks
    assert task.verdict.paired.difference == pytest.approx(
        _rate(runs_sums / "a") - _rate(runs_sums / "b")
    )
    assert task.verdict.outcome is VerdictOutcome.FAIL
    assert any(
        "no early stop: the value is the word error rate" in w for w in task.verdict.warnings
    )
    some = replace(judged, early_stop=None, limit=20)
    (part,) = _run(some, tmp_path / "part", 0.9).tasks
    assert part.verdict.reference == pytest.approx(_rate(tmp_path / "part"))
    assert part.verdict.paired.difference == pytest.approx(0.0, abs=1e-12)
    found = references.find("voxpopuli", MODEL, plan.accuracy_spec, [tmp_path / "refs"])
    assert found.runs is not None


@NEEDS_MEDIA
@pytest.mark.usefixtures("simulated_here")
def test_shards_add_up(plan, runs_sums, tmp_path):
    for number in (1, 2):
        _run(replace(plan, shard=Shard(number=number, count=2)), tmp_path / str(number), 0.9)
    shards = read_shards([tmp_path / "1", tmp_path / "2"])
    report = merge(shards, plan_of_whole(shards), tmp_path / "whole")
    assert report.tasks[0].result.value == pytest.approx(_rate(runs_sums / "a"))


@NEEDS_MEDIA
@pytest.mark.usefixtures("simulated_here")
def test_rescore_gives_the_same_value(runs_sums):
    (task,) = rescore(runs_sums / "b")
    assert task.before == task.after == pytest.approx(_rate(runs_sums / "b"))
