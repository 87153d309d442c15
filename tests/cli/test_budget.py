"""A bound of tokens or time on a run: what it asks, what it says, and how it goes on."""

import json
import re
from pathlib import Path
from typing import Any

import pytest

from serve_eval.evaluation.engine.lane import arrange, task_seed
from serve_eval.report.lines import sum_up_cost
from serve_eval.schema import RunCost
from serve_eval.storage import order_seed, run_folder
from serve_eval.storage.report_file import read_report
from tests.cli.command import serve_eval
from tests.json_files import read_json
from tests.scripted_server import ScriptedServer, answer, models

pytestmark = pytest.mark.usefixtures("simulated_here")

N = 200
PROMPT = 240
"""Tokens of a prompt of the generated GSM8K, about."""


@pytest.fixture(scope="module")
def references(tmp_path_factory) -> Path:
    folder = tmp_path_factory.mktemp("references")
    for task in ("gsm8k", "mmlu"):
        (folder / f"{task}.yaml").write_text("simulated:\n  - accuracy: 90.0\n    source: tests\n")
    return folder


@pytest.fixture
def run(data_root: Path, references: Path, tmp_path: Path):
    """Return a function that runs `serve-eval run` on the simulated model."""

    def call(*words: str, exits: int, out: str = "out", accuracy: float = 0.9, tasks="gsm8k"):
        return serve_eval(
            "run --launcher simulated --set gsm8k.num_samples=200 --set limits.order_seed=5",
            *("--dataset-root", data_root, "--references-dir", references, "-o", tmp_path / out),
            *("--tasks", tasks, "--set", f"launcher.accuracy={accuracy}"),
            *words,
            exits=exits,
        )

    return call


def _report(folder: Path) -> dict[str, Any]:
    found: dict[str, Any] = read_json(folder / "report.json")
    return found


def _asked(folder: Path, task: str = "gsm8k") -> list[str]:
    lines = (folder / "samples" / f"{task}.jsonl").read_text().splitlines()
    return [json.loads(line)["id"] for line in lines]


def _resume(folder: Path, *words: str, exits: int):
    return serve_eval("run --resume", folder, *words, exits=exits)


def _assert_prefix(folder: Path, repeats: int = 1) -> None:
    """Assert that the samples asked are the first ones of the run's random order."""
    from serve_eval.evaluation.prepare import prepare
    from serve_eval.evaluation.results.sample_table import Repeated

    plan = run_folder.read_plan(folder)
    (prepared, *_) = prepare(plan)
    samples = Repeated(prepared.dataset.samples, repeats)
    seed = order_seed.read_seeds(folder, plan).samples
    order = arrange(samples, range(len(samples)), "random", task_seed(seed, "gsm8k"))
    asked = _asked(folder)
    assert {samples[i].id for i in order[: len(asked)]} == set(asked)


def test_a_bound_ends_a_run_that_goes_on_with_a_larger_one(run, tmp_path):
    out = tmp_path / "out"
    done = run("--max-tokens-total", "20000", exits=3)
    report = _report(out)
    (task,) = report["tasks"]
    verdict, cost = task["verdict"], report["cost"]
    asked = len(_asked(out))
    assert 0.9 * 20000 < cost["prompt_tokens"] + cost["generated_tokens"] < 1.02 * 20000
    assert verdict["outcome"] == "INCONCLUSIVE"
    assert verdict["budget"]["ended_by"] == report["loads"][-1]["ended_by"] == "max_tokens_total"
    assert verdict["budget"]["asked"] == asked == N - verdict["budget"]["unasked"]
    assert verdict["budget"]["detects"] > verdict["budget"]["whole_detects"] > 10.0
    assert verdict["evaluated"] is None
    _assert_prefix(out)
    first = done.stdout
    assert f"the limit ended the run after {asked} of 200 samples" in first
    assert f"{N - asked} not asked" in first
    assert " cost     " in first
    [printed] = re.findall(r"(serve-eval run --resume .* --max-tokens-total \d+)$", first, re.M)
    low, high = verdict["budget"]["interval"]
    assert low < verdict["budget"]["estimate"] < high

    again = _resume(out, exits=3)
    assert "nothing was asked: earlier sessions reached the bound of 20,000 tokens" in again.stdout
    assert len(_asked(out)) == asked
    judged = serve_eval("judge", out, exits=3)
    assert "the limit ended the run" in judged.stdout

    _resume(out, "--max-tokens-total", "30000", exits=3)
    _assert_prefix(out)
    assert len(_asked(out)) > asked
    whole = serve_eval(printed.removeprefix("serve-eval "), exits=0)
    assert " PASS " in whole.stdout
    assert len(_asked(out)) == N
    assert _report(out)["tasks"][0]["verdict"]["budget"] is None


def test_a_run_that_asks_anew_has_the_whole_bound(run, tmp_path):
    words = ("--max-tokens-total", "60000")
    run(*words, exits=0)
    before = len(_asked(tmp_path / "out"))
    run(*words, "--rerun", "all", exits=0)
    assert len(_asked(tmp_path / "out")) == before == N
    again = run("--max-tokens-total", "20000", "--rerun", "all", exits=3)
    assert "the limit ended the run" in again.stdout
    _resume(tmp_path / "out", "--max-tokens-total", "60000", exits=0)
    assert len(_asked(tmp_path / "out")) == N


def test_each_run_prints_its_cost(run, tmp_path):
    done = run("--set", "gpus=4", exits=0)
    cost = _report(tmp_path / "out")["cost"]
    total = cost["prompt_tokens"] + cost["generated_tokens"]
    shown = f" cost     {total:,} tokens ({cost['generated_tokens']:,} generated), "
    assert shown in done.stdout
    assert "GPU seconds" in done.stdout
    assert cost["gpus"] == 4
    assert cost["gpu_s"] == pytest.approx(4 * cost["served_s"], abs=0.1)
    more = serve_eval("judge", tmp_path / "out", "-v", exits=0).stdout
    assert "cost: " in more
    assert "4 GPUs for" in more
    assert "GPU seconds" in (tmp_path / "out" / "report.html").read_text()


def test_reports_of_older_versions_have_no_cost(run, tmp_path):
    run(exits=0)
    file = tmp_path / "out" / "report.json"
    old = read_json(file)
    del old["cost"]
    for load in old["loads"]:
        del load["ended_by"]
    for task in old["tasks"]:
        del task["traffic"]["without_usage"], task["traffic"]["uncounted_attempts"]
        del task["verdict"]["budget"]
    file.write_text(json.dumps(old))
    assert read_report(tmp_path / "out").cost is None


def test_tasks_are_asked_in_their_order(run, tmp_path):
    done = run(
        *("--max-tokens-total", "60000", "--set", "mmlu.num_samples=300"),
        tasks="gsm8k,mmlu",
        exits=3,
    )
    first, second = _report(tmp_path / "out")["tasks"]
    assert first["verdict"]["outcome"] == "PASS"
    assert first["verdict"]["budget"] is None
    assert second["verdict"]["outcome"] == "INCONCLUSIVE"
    assert second["result"]["spared"] > 0
    assert "INCONCLUSIVE" in done.stdout
    run(
        *("--max-tokens-total", "20000", "--set", "mmlu.num_samples=300"),
        tasks="gsm8k,mmlu",
        out="less",
        exits=3,
    )
    _, second = _report(tmp_path / "less")["tasks"]
    assert second["verdict"]["outcome"] == "NOT ASKED"
    assert second["result"]["scored"] == second["result"]["failed"] == 0
    assert "none of the 342 samples was asked" in " ".join(second["verdict"]["reasons"])


def test_repeats_are_a_part_of_the_order(run, tmp_path):
    run("--max-tokens-total", "40000", "--repeats", "4", exits=3)
    (task,) = _report(tmp_path / "out")["tasks"]
    assert task["verdict"]["budget"]["planned"] == 4 * N
    _assert_prefix(tmp_path / "out", repeats=4)
    _resume(tmp_path / "out", "--max-tokens-total", "400000", exits=0)


def test_a_verdict_is_certain_if_nothing_left_can_turn_it(run, tmp_path):
    done = run("--max-tokens-total", "25000", accuracy=0.02, exits=1)
    (task,) = _report(tmp_path / "out")["tasks"]
    assert task["verdict"]["outcome"] == "FAIL"
    assert task["verdict"]["budget"]["unasked"] > 0
    assert "the verdict is certain" in done.stdout


def test_an_early_stop_may_decide_before_the_bound(run, tmp_path):
    run("--max-tokens-total", "45000", "--early-stop", accuracy=0.4, exits=1)
    (task,) = _report(tmp_path / "out")["tasks"]
    assert task["verdict"]["early"]["stopped"]
    assert task["verdict"]["budget"] is None
    run("--max-tokens-total", "15000", "--early-stop", out="less", exits=3)
    (task,) = _report(tmp_path / "less")["tasks"]
    assert task["verdict"]["outcome"] == "INCONCLUSIVE"
    assert task["verdict"]["early"]["decision"] is None
    assert task["verdict"]["budget"]["asked"] == len(_asked(tmp_path / "less"))
    _resume(tmp_path / "less", "--max-tokens-total", "300000", exits=0)


def test_shards_have_parts_of_the_bound(run, data_root, references, tmp_path):
    shards = [tmp_path / f"shard{number}" for number in (1, 2)]
    for number in (1, 2):
        words = ("--max-tokens-total", "30000", "--shard", f"{number}/2")
        run(*words, out=f"shard{number}", exits=0)
    costs = [_report(shard)["cost"] for shard in shards]
    for cost in costs:
        assert cost["prompt_tokens"] + cost["generated_tokens"] < 1.03 * 15000
    merge = ("runs merge", *shards, "--dataset-root", data_root, "--references-dir", references)
    serve_eval(*merge, "-o", tmp_path / "merged", exits=3)
    report = _report(tmp_path / "merged")
    (task,) = report["tasks"]
    asked = sum(len(_asked(shard)) for shard in shards)
    assert task["verdict"]["outcome"] == "INCONCLUSIVE"
    assert task["verdict"]["budget"]["unasked"] == N - asked
    assert 0 < task["verdict"]["budget"]["asked"] <= asked
    assert report["cost"]["prompt_tokens"] == sum(cost["prompt_tokens"] for cost in costs)


def test_failed_requests_are_charged(run, tmp_path):
    failing = ("--set", "launcher.failure_rate=1", "--set", "launcher.failures_per_prompt=1")
    run(*failing, "--set", "limits.max_error_rate=1", "--max-tokens-total", "20000", exits=3)
    report = _report(tmp_path / "out")
    traffic = report["tasks"][0]["traffic"]
    assert traffic["retries"]
    cost = report["cost"]
    assert cost["uncounted_attempts"] == traffic["uncounted_attempts"]
    assert cost["prompt_tokens"] + cost["generated_tokens"] < 1.02 * 20000
    _assert_prefix(tmp_path / "out")


def test_a_bound_below_one_request_is_refused(run, tmp_path):
    done = run("--max-tokens-total", "300", exits=2)
    assert "fewer than one request of gsm8k may cost" in done.stderr
    assert not (tmp_path / "out").exists()


def test_a_prefix_of_another_order_says_nothing_of_the_rest(run, tmp_path):
    done = run("--set", "limits.order=natural", "--max-tokens-total", "20000", exits=3)
    assert "in no common random order, so that they say nothing of the others" in done.stdout
    (task,) = _report(tmp_path / "out")["tasks"]
    assert task["verdict"]["budget"]["estimate"] is None


def test_time_ends_a_run(run, tmp_path):
    slow = ("--set", "launcher.latency_s=0.05", "--concurrency", "4")
    run(*slow, "--set", "limits.max_time_s=0.5", exits=3)
    (task,) = _report(tmp_path / "out")["tasks"]
    assert task["verdict"]["budget"]["ended_by"] == "max_time_s"
    _assert_prefix(tmp_path / "out")
    again = _resume(tmp_path / "out", exits=3)
    assert "nothing was asked: earlier sessions reached the bound of 0.5 s" in again.stdout
    _resume(tmp_path / "out", "--set", "limits.max_time_s=600", exits=0)


@pytest.mark.parametrize("usage", [None, (100, 0)])
def test_tokens_that_no_server_reports_are_said(usage, data_root, references, tmp_path):
    server = ScriptedServer(answer("#### 7" * 10, usage=usage), routes={"/v1/models": models("m")})
    with server.serve_in_thread() as url:
        done = serve_eval(
            "run --no-reference --model m -t gsm8k --set gsm8k.num_samples=100",
            *("--base-url", url, "--dataset-root", data_root, "-o", tmp_path / "out"),
            *("--max-tokens-total", "10000"),
            exits=3,
        )
        again = _resume(tmp_path / "out", exits=3)
    assert "nothing was asked: earlier sessions reached the bound" in again.stdout
    report = _report(tmp_path / "out")
    asked = len(_asked(tmp_path / "out"))
    assert report["cost"]["without_usage"] == asked < 100
    assert f"{asked} answers report none" in done.stdout
    assert report["tasks"][0]["verdict"]["outcome"] == "NO REFERENCE"


def test_a_dry_run_predicts_the_tokens(run, tmp_path):
    said = run("--dry-run", "--max-tokens-total", "20000", exits=0).stdout
    assert "(by the server's tokenizer)" in said
    assert "generated tokens: at most 51,200 (by the limit of 256 an answer)" in said
    assert "of which the bound of 20,000 pays for at least" in said
    assert "drop of 1 point: needs 30,913 prompts (there are 200), at most" in said
    assert "drop of 5 points: needs 1,237 prompts" in said
    run(exits=0)
    cost = _report(tmp_path / "out")["cost"]
    told = json.loads(run("--dry-run", "--json", out="next", exits=0).stdout)["tokens"]
    (found,) = told
    assert found["prompt_tokens"] == cost["prompt_tokens"]
    assert found["generated_tokens"] == pytest.approx(cost["generated_tokens"], rel=0.01)
    assert not found["bounded"]


def test_a_comparison_ends_on_both_sides_together(data_root, tmp_path):
    for run in (1, 2):
        (tmp_path / f"{run}.yaml").write_text(
            "model: simulated\n"
            f"launcher: {{simulated: {{accuracy: 0.9, flip_rate: 0.03, run: {run}}}}}\n"
        )
    words = (
        "compare",
        *(tmp_path / "1.yaml", tmp_path / "2.yaml", "--dataset-root", data_root, "-t", "gsm8k"),
        *("--set", "gsm8k.num_samples=200", "-o", tmp_path / "out", "--self", "0"),
    )
    done = serve_eval(*words, "--max-tokens-total", "50000", "--concurrency", "4", exits=3)
    a, b = (_asked(tmp_path / "out" / side) for side in "ab")
    assert len({*a} ^ {*b}) <= 8
    assert 60 < len({*a} & {*b}) < N
    spent = [_report(tmp_path / "out" / side)["cost"]["prompt_tokens"] for side in "ab"]
    assert sum(spent) < 50000
    (task,) = read_json(tmp_path / "out" / "comparison.json")["tasks"]
    assert task["verdict"]["outcome"] == "INCONCLUSIVE"
    assert task["verdict"]["paired"]["pairs"] == len({*a} & {*b})
    assert "the limit ended the comparison" in done.stdout

    sessions = (tmp_path / "out" / "a" / "environment.json").read_bytes()
    again = serve_eval(*words, "--max-tokens-total", "50000", "--concurrency", "4", exits=3)
    assert "nothing was asked: earlier sessions reached the bound of 50,000 tokens" in again.stderr
    assert "launch" not in again.stderr
    assert (tmp_path / "out" / "a" / "environment.json").read_bytes() == sessions
    serve_eval(*words, "--max-tokens-total", "500000", exits=0)
    assert len(_asked(tmp_path / "out" / "a")) == N


def test_the_side_that_costs_more_ends_both(data_root, tmp_path):
    routes = {"/v1/models": models("m")}
    cheap, dear = (
        ScriptedServer(answer("#### 7", usage=(tokens, 2)), routes=routes) for tokens in (100, 200)
    )
    with cheap.serve_in_thread() as a, dear.serve_in_thread() as b:
        serve_eval(
            "compare --model m -t gsm8k --set gsm8k.num_samples=200 --self 0 --concurrency 4",
            *(a, b, "--dataset-root", data_root, "-o", tmp_path / "out"),
            *("--max-tokens-total", "40000"),
            exits=3,
        )
    asked = [len(_asked(tmp_path / "out" / side)) for side in "ab"]
    assert max(asked) < 110  # alone, A could ask 190
    assert abs(asked[0] - asked[1]) <= 8


@pytest.mark.parametrize(
    ("asked", "shown"),
    [
        (0, "0 tokens (0 generated), probes 3,306 more"),
        (40, "50 tokens (40 generated)"),
    ],
    ids=["probes alone", "with answers"],
)
def test_the_cost_names_probes_where_nothing_else_was_asked(asked, shown):
    cost = RunCost(prompt_tokens=asked // 4, generated_tokens=asked, probe_tokens=3306)
    assert sum_up_cost(cost) == shown
