"""Test what is told before a run: its planned power, and faults of its data sets."""

import json
import math
import re
import shlex

import pytest
from typer.testing import CliRunner

from serve_eval.cli.app import app
from serve_eval.errors import PlanError
from serve_eval.stats.planning import (
    classic_power,
    compute_fail_power,
    compute_margin,
    compute_paired_power,
)
from tests.cli.command import serve_eval
from tests.json_files import read_json

pytestmark = pytest.mark.usefixtures("simulated_here")


def test_the_smallest_n_for_theta_stands_beside_the_row_of_the_table():
    done = serve_eval(
        "references power --theta 3 --total 14042 -v",
        exits=0,
        prints="theta    3 points take 3,435 samples",
    )
    assert "row of the table: 4096" in done.stdout
    rows = [line.split() for line in done.stdout.splitlines()]
    assert ["4096", "2.747193", "-1.817324", "0.79", "1.54"] in rows


def _ask(words=""):
    """Return the figures of a question about one task."""
    done = serve_eval(f"references power --json {words}", exits=0)
    [one] = json.loads(done.stdout)["result"]["tasks"]
    return dict(one)


def test_the_three_rules_are_compared_for_a_drop():
    words = "--detect 1.0 --flip-rate .034"
    found = _ask(words)["detection"]
    numbers = {one["rule"]: one["n"] for one in found["needed"]}
    assert numbers["classic"] == 30913
    assert 2200 < numbers["paired"] < 3000
    assert 2000 < numbers["noninferiority"] < 2400
    [at_the_drop] = [row for row in found["rows"] if row["drop"] == 1.0]
    assert at_the_drop["proven"] >= 0.8 > at_the_drop["classic"]
    shown = serve_eval(f"references power -v {words}").stdout
    assert " paired   2,702 samples to prove the drop\n" in shown
    assert " Power with 2702 samples\n" in shown
    assert " classic  30,913 samples as theta, each side on its own prompts\n" in shown
    assert _power_row(shown, "0.25")[0] == 4.7e-08, "a small chance keeps its size"


def _power_row(text, drop):
    """Return the powers of classic FAIL, paired proven and paired FAIL at a drop."""
    rows = map(str.split, text.split(" Power with")[1].splitlines())
    return [float(word) for row in rows if row[:1] == [drop] for word in row[1:]]


@pytest.mark.parametrize(
    "words",
    [
        "--total 1319",
        "--detect 1 --set power.tests=8 --margin 0.5",
        "--theta 3 --set power.sigma=11.06 --repeats 2",
        "--total 1319 --detect 5 --theta 3 --set power.design_effect=1.5",
    ],
)
def test_a_first_screen_has_the_answer_and_a_command_that_asks_the_reverse(words):
    done = serve_eval("references power", *words.split(), COLUMNS="80")
    lines = done.stdout.splitlines()
    assert len(lines) <= 22
    assert lines[0].startswith(" PLAN ")
    assert serve_eval("references power -q", *words.split()).stdout.splitlines() == lines[:1]
    [command] = json.loads(serve_eval("references power --json", *words.split()).stdout)["commands"]
    assert command in done.stdout
    serve_eval(*shlex.split(command)[1:], exits=0)
    for option in ("power.tests=8", "--margin 0.5", "power.sigma=11.06", "power.design_effect=1.5"):
        assert (option in command) == (option in words)


@pytest.mark.parametrize(("margin", "tests"), [(None, 1), (4.0, 1), (None, 8)])
def test_a_proof_and_a_fail_of_the_paired_rule_are_two_columns(margin, tests):
    flags = [] if margin is None else ["--margin", str(margin)]
    done = serve_eval(f"references power --detect 5 --set power.tests={tests} -v", *flags, exits=0)
    n = int(re.search(r"Power with (\d+) samples", done.stdout)[1])
    default = 100 * compute_margin(n, 0.05)
    assert f"one of the margin, {margin or default:.4g} points" in done.stdout
    assert ("the rule's default" in done.stdout) == (margin is None)
    assert ("worst rank" in done.stdout) == (tests > 1)
    share = None if margin is None else margin / 100
    expected = [
        classic_power(0.05, n, 0.034, 0.05),
        compute_paired_power(0.05, n, 0.034, 0.05 / tests),
        compute_fail_power(0.05, n, 0.034, 0.05, share, tests=tests),
    ]
    assert _power_row(done.stdout, "5") == pytest.approx(expected, abs=6e-4)
    [fails] = re.findall(r"FAIL +(\d+) samples +to FAIL", done.stdout)
    assert int(fails) > n or margin is not None


def test_a_margin_above_the_drop_is_never_reached_by_more_samples():
    done = serve_eval("references power --detect 2 --margin 3 --total 4000 -v")
    assert "no number of samples to FAIL: more exclude 3 points" in done.stdout
    assert _power_row(done.stdout, "2")[2] < _power_row(done.stdout, "2")[1]
    last = next(row for row in map(str.split, done.stdout.splitlines()) if row[:1] == ["4000"])
    assert float(last[3]) < 1 < 2 < float(last[4]) < 3


def test_a_runs_own_spread_and_throughput_are_used(data_root, tmp_path):
    flags = f"run --launcher simulated --tasks gsm8k --dataset-root {data_root} --no-reference"
    serve_eval(f"{flags} --set gsm8k.num_samples=200 -o {tmp_path}/out", exits=3)
    asked = f"--from {tmp_path}/out --theta 3 --detect 2"
    done = serve_eval(f"references power -v {asked}", exits=0)
    value = float(done.stdout.split("value ")[1].split(",")[0]) / 100
    sigma = float(done.stdout.split("standard deviation ")[1].split()[0])
    assert sigma == pytest.approx(100 * math.sqrt(value * (1 - value)), abs=0.001)
    assert float(done.stdout.split("(sigma ")[1].split(",")[0]) == pytest.approx(sigma, abs=0.01)
    assert done.stdout.count(" s at the measured throughput") == 4
    found = _ask(asked)
    rate = found["measured"]["per_second"]
    assert [one["seconds"] * rate for one in found["detection"]["needed"]] == pytest.approx(
        [one["n"] for one in found["detection"]["needed"]]
    )


def test_equal_scores_have_no_spread_to_plan_with(tmp_path):
    run = "run --launcher simulated -m m -t passkey_short --limit 4"
    right = f"--set launcher.accuracy=1 --no-reference -o {tmp_path}/out"
    serve_eval(f"{run} {right}", exits=3)
    done = serve_eval(f"references power --from {tmp_path}/out --detect 5 -v")
    assert "their spread is not known" in done.stdout
    assert "sigma 50, the default: the run shows no spread" in done.stdout
    assert re.search(r"classic +1,237 samples", done.stdout), done.stdout


def test_each_task_of_a_run_is_planned_with_its_own_spread(tmp_path):
    run = "run --launcher simulated -m m -t word_problems,tool_calls"
    wrong = "--set launcher.accuracy=0.8 --limit 20 --no-reference"
    serve_eval(f"{run} {wrong} -o {tmp_path}/out", exits=3)
    asked = f"--from {tmp_path}/out --theta 3 --detect 2"
    done = serve_eval(f"references power {asked}", exits=0)
    head = ["task", "n", "FAIL from", "proven from", "classic from", "n to prove 2", "n to FAIL 2"]
    lines = done.stdout.splitlines()
    assert re.split(r"  +", lines[1].strip()) == head
    found = json.loads(serve_eval(f"references power --json {asked}").stdout)["result"]["tasks"]
    assert [one["task"] for one in found] == ["word_problems", "tool_calls"]
    for one, row in zip(found, lines[2:], strict=False):
        measured, assumed = one["measured"]["sigma"], one["assumed"]["sigma"]
        assert measured == assumed < 49
        assert row.split()[:2] == [one["task"], "20"]
        assert float(row.split()[4]) == pytest.approx(one["at"]["theta"], abs=0.005)
    whole = serve_eval(f"references power -v {asked}").stdout
    assert " Power with 812 samples of tool_calls\n" in whole
    assert f"tool_calls: 20 samples, value {found[1]['measured']['value']:.3f}, " in whole


def _run(out, *more):
    asked = "run --launcher simulated -m m -t word_problems"
    noisy = "--set launcher.accuracy=0.6 --set launcher.flip_rate=0.2"
    done = serve_eval(f"{asked} {noisy} -o {out}", *(more or ("--limit", "80", "--no-reference")))
    assert done.returncode in (0, 1, 3), done.stderr
    [task] = read_json(out / "report.json")["tasks"]
    return dict(task)


def test_the_flips_of_repeats_are_planned_with_and_a_prompt_counts_once(tmp_path):
    task = _run(
        tmp_path / "out",
        "--limit",
        "80",
        "--repeats",
        "3",
        "--no-reference",
        "--set",
        "launcher.varied=true",
    )
    rate = task["result"]["stability"]["flip_rate"]
    assert rate > 0.05
    asked = f"--from {tmp_path}/out --detect 5"
    done = serve_eval(f"references power -v {asked}")
    assert f"flip rate {rate:.4g}, measured: of its 3 repeats" in done.stdout
    assert " run      80 samples, value " in done.stdout
    assert _ask(asked)["assumed"]["flip_rate"] == rate
    given = serve_eval(f"references power --flip-rate .1 -v {asked}")
    assert "flip rate 0.1, as given" in given.stdout
    assert _ask(f"{asked} --flip-rate .1")["assumed"]["flip_rate"] == 0.1


def test_the_flips_against_a_reference_are_planned_with(tmp_path):
    _run(tmp_path / "first", "--no-reference")
    refs = tmp_path / "refs"
    serve_eval(f"references register {tmp_path}/first --references-dir {refs}", exits=0)
    task = _run(
        tmp_path / "out", "--references-dir", refs, "--limit", "80", "--set", "launcher.run=2"
    )
    paired = task["verdict"]["paired"]
    turned = paired["down"] + paired["up"]
    assert turned > 4
    assert paired["finding"] not in ("FAIL", "SMALL_DROP")
    done = serve_eval(f"references power --from {tmp_path}/out --detect 5")
    rate = f"{turned / 80:.4g}"
    said = f"flip rate {rate}, measured: {turned} of 80 prompts turned over against its reference"
    assert said in done.stdout


def test_the_classic_rule_is_planned_with_the_sigma_that_judges(tmp_path):
    size = ("--set", "word_problems.num_samples=80")
    _run(tmp_path / "first", *size, "--no-reference")
    refs = tmp_path / "refs"
    plain = serve_eval(f"references power --from {tmp_path}/first --detect 5 -v").stdout
    assert "measured: a reference that is registered from this run sets it" in plain
    serve_eval(f"references register {tmp_path}/first --references-dir {refs}")
    [file] = refs.glob("*.yaml")
    text = file.read_text()
    registered = float(re.search(r"sigma: ([\d.]+)", text)[1])
    file.write_text(re.sub(r"sigma: [\d.]+", "sigma: 50.0", text))
    task = _run(tmp_path / "out", "--references-dir", refs, *size)
    assert task["verdict"]["sigma"] == 50.0 > registered
    detect = f"--from {tmp_path}/out --detect 5"
    told = serve_eval(f"references power --total 80 -v {detect}").stdout
    assert "sigma 50, by which the classic rule judged this run: that of its reference" in told
    assert f"the measured {registered:.3f} judges nothing" in told
    assert re.search(r"classic +for a drop of 5 points: 1,237 samples", told), told
    theta = next(line.split()[1] for line in told.splitlines() if line.split()[:1] == ["80"])
    assert float(theta) == pytest.approx(task["verdict"]["theta"], abs=1e-5)
    asked = serve_eval(f"references power --set power.sigma=25 -v {detect}").stdout
    assert "sigma 25, as given" in asked
    assert re.search(r"classic +310 samples", asked), asked


def test_the_default_is_named_if_a_run_shows_no_flips(tmp_path):
    _run(tmp_path / "out")
    done = serve_eval(f"references power --from {tmp_path}/out --detect 5")
    assert "flip rate 0.034, the default: the run shows no flips" in done.stdout


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ("", "give at least one of --total N"),
        ("--total 0", "--total must be 1 or more"),
        ("--total 99 --margin 0", "--margin must be above 0 and finite"),
        ("--total 99 --set power.tests=0", "power.tests"),
        ("--theta -1", "theta must be a finite number"),
        ("--detect 0", ""),
        ("--detect 1 --flip-rate 2", ""),
        ("--from /nowhere", "holds no run: there is no such folder"),
    ],
)
def test_what_cannot_be_planned_is_said(arguments, said):
    done = serve_eval(f"references power {arguments}", exits=2, tells=said)
    assert "Traceback" not in done.stderr
    assert "unexpected" not in done.stderr


TASK = '''"""Sums: how much two numbers are together, as a plug-in."""
from serve_eval.schema import (
    Dataset, Hypothesis, Metric, Outcome, Sample, SamplingParams, Score, Task)

ROWS = [("1+1", "2"), ("600+634", "1,234"), ("2+2", "4"), {more}]


def load(roots, wanted):
    samples = [Sample(id=f"sum-{{i}}", prompt=prompt, target=target)
               for i, (prompt, target) in enumerate(ROWS)]
    return Dataset(samples=samples, files=(), total=len(ROWS))


def score(sample, response):
    said = response.text.strip(){read}
    right = {right}
    return Score(value=float(right), outcome=Outcome.CORRECT if right else Outcome.WRONG,
                 answer=said)


def task():
    return Task(name="sums", version=1, reference_file="sums", metric=Metric(),
                hypothesis=Hypothesis(num_samples=len(ROWS)), protocol={{}}, load=load,
                sampling=SamplingParams(max_tokens={tokens}), score=score, scoring="inline",
                answers=lambda sample: ({gold}, "7"))
'''
SOUND = {
    "more": "",
    "read": "",
    "right": "said == sample.target",
    "tokens": "16",
    "gold": "sample.target",
}


def _check(folder, *arguments, **changes):
    (folder / "tasks").mkdir()
    (folder / "tasks/sums.py").write_text(TASK.format(**{**SOUND, **changes}))
    asked = ["--set", f"include_path={folder}", "--dataset-root", str(folder), *arguments]
    return CliRunner().invoke(app, ["data", "check", "sums", *asked])


def _json(done):
    [found] = json.loads(done.stdout)["result"]
    return dict(found)


def test_gold_answers_and_wrong_ones_of_a_sound_task_are_counted(tmp_path):
    done = _check(tmp_path)
    assert done.exit_code == 0, done.output
    told = " ".join(done.stdout.split())
    assert told.startswith("1 task asked for gold, 0 with another score task sums: 3 samples,")
    assert "3 gold answers score full marks, 3 wrong ones nothing, " in told
    assert "files" not in told


@pytest.mark.parametrize(
    ("changes", "side", "rows"),
    [
        ({"read": ".replace(',', '')"}, "gold", ["sum-1"]),
        ({"right": "bool(said)"}, "zero", ["sum-0", "sum-1", "sum-2"]),
        ({"tokens": "1", "gold": "'it is ' + sample.target"}, "gold", ["sum-0", "sum-1", "sum-2"]),
    ],
    ids=["an extraction that the data does not fit", "a scorer without a no", "a cut answer"],
)
def test_each_row_with_another_score_is_named(tmp_path, changes, side, rows):
    done = _check(tmp_path, "--json", **changes)
    assert done.exit_code == 1, done.output
    found = _json(done)
    assert [(row["side"], row["id"]) for row in found["rows"]] == [(side, one) for one in rows]
    assert found["samples"] == 3
    assert found[side] == 3 - len(rows)
    assert {row["cut"] for row in found["rows"]} == {"tokens" in changes}


def test_the_first_rows_are_in_the_list(tmp_path):
    told = " ".join(_check(tmp_path, read=".replace(',', '')").stdout.split())
    assert "gold answers without full marks: 1, such as sum-1 (wrong 0, read as '1234')" in told


def test_a_scorer_that_raises_is_named(tmp_path):
    done = _check(tmp_path, right="bool(said) and 1 / (int(said.replace(',', '')) - 4)")
    told = " ".join(done.stdout.split())
    assert done.exit_code == 1
    assert "gold answers without full marks: 3, such as " in told
    assert "sample sum-2: ZeroDivisionError" in told


def test_samples_whose_prompt_has_two_gold_answers_are_left_out(tmp_path):
    done = _check(tmp_path, "--json", more="('2+2', '5'), ('1+1', '2')")
    assert done.exit_code == 0, done.output
    found = _json(done)
    assert (found["samples"], found["gold"], found["zero"], found["shared"]) == (3, 3, 3, 2)


def test_a_name_that_is_a_data_set_and_a_task_is_checked_as_both(data_root):
    arguments = ["data", "check", "gpqa", "--dataset-root", str(data_root), "--limit", "5"]
    done = CliRunner().invoke(app, arguments)
    assert done.exit_code == 0, done.output
    told = " ".join(done.stdout.split())
    assert f"{data_root}: holds no fetched file" in told
    assert "1 task asked for gold, 0 with another score task gpqa: 5 samples," in told


def test_a_task_without_gold_says_so():
    arguments = ["data", "check", "word_problems_perplexity", "--limit", "3"]
    told = " ".join(CliRunner().invoke(app, arguments).stdout.split())
    assert "3 gold answers (made up) score better than the wrong ones, " in told
    assert "the data has no gold answers: the log-probability of a text is no answer" in told


def test_a_name_that_is_neither_is_refused():
    failed = CliRunner().invoke(app, ["data", "check", "gsm9k"])
    assert isinstance(failed.exception, PlanError)
    assert str(failed.exception) == "unknown data set or task 'gsm9k'. Did you mean 'gsm8k'?"
