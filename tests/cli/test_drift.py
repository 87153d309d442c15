"""Drift charts of histories of run folders.

All histories are made from one real run: its folder is copied under another date, and some samples
gain or lose their point, both in the scores and in the report.
"""

import json
import re
import shlex
import shutil
import statistics
from datetime import UTC, datetime, timedelta
from pathlib import Path
from xml.etree import ElementTree

import pytest

from serve_eval.stats.drift import false_alarm_chance
from tests.cli.command import serve_eval
from tests.json_files import read_json

pytestmark = pytest.mark.usefixtures("simulated_here")

N = 400
FIRST = datetime(2026, 3, 1, 2, 0, tzinfo=UTC)


@pytest.fixture(scope="module")
def base(data_root, tmp_path_factory):
    out = tmp_path_factory.mktemp("base") / "out"
    flags = f"run --launcher simulated --model org/m --tasks gsm8k --dataset-root {data_root}"
    serve_eval(f"{flags} --no-reference --limit {N} --set launcher.accuracy=0.8 -o {out}", exits=3)
    return out


def _json(file):
    return read_json(file)


class Nights:
    """Make runs of one endpoint, a day apart."""

    def __init__(self, base, folder):
        self.base, self.folder = base, folder
        self.made = 0
        (folder).mkdir(exist_ok=True)

    def add(
        self,
        turned=(),
        *,
        to=0.0,
        name="",
        **report,
    ):
        """Add a run in which the samples at these places score `to`.

        `report` replaces fields of the task's result.
        """
        run = Path(shutil.copytree(self.base, self.folder / (name or f"night{self.made:02}")))
        lines = [json.loads(line) for line in (run / "scores/gsm8k.jsonl").read_text().splitlines()]
        lines.sort(key=lambda line: (-line["value"], line["id"]))  # right answers first
        for place in turned:
            lines[place]["value"] = to
        (run / "scores/gsm8k.jsonl").write_text("".join(f"{json.dumps(line)}\n" for line in lines))
        content = _json(run / "report.json")
        value = 100 * sum(line["value"] for line in lines) / len(lines)
        content["tasks"][0]["result"] |= {"value": value, **report}
        (run / "report.json").write_text(json.dumps(content))
        sessions = _json(run / "environment.json")
        sessions[0]["started_at"] = (FIRST + timedelta(days=self.made)).isoformat()
        (run / "environment.json").write_text(json.dumps(sessions))
        self.made += 1
        return run

    def edit(self, run, **task):
        """Replace fields of the report's task."""
        content = _json(run / "report.json")
        content["tasks"][0] |= task
        (run / "report.json").write_text(json.dumps(content))


@pytest.fixture
def nights(base, tmp_path):
    return Nights(base, tmp_path / "nights")


def follow(shown):
    """Run each next command as it is printed."""
    commands = re.findall(r"^ (?:next|    ) +(serve-eval .*)$", shown, re.MULTILINE)
    assert [line.split()[1] for line in commands] == ["compare", "diagnose"]
    # The decline begins with the ninth run.
    assert [Path(one).name for one in shlex.split(commands[0])[2:]] == ["night07", "night19"]
    for line in commands:
        done = serve_eval(*shlex.split(line)[1:])
        assert done.returncode != 2, (line, done.stderr)


def _noise(night, flips=6):
    """Return the places of right samples that are wrong on this night; each night has its own."""
    return tuple((37 * night + 11 * i) % 300 for i in range(flips))


def _charts(folder, flags=""):
    done = serve_eval(f"runs trend {folder} --json {flags}", exits=0)
    return json.loads(done.stdout)["result"]


def test_a_slow_decline_alarms_and_fails_nothing(nights, monkeypatch):
    for night in range(8):
        nights.add(_noise(night))
    for night in range(8, 20):
        nights.add(tuple({*_noise(night), *range(300, 306)}))  # a drop of 1.5 points
    page = nights.folder.parent / "drift.html"
    done = serve_eval(f"runs trend {nights.folder} -v -o {page}", exits=0)
    assert done.stdout.startswith(" ALARM ")
    assert "after 20 runs of 400 samples; S " in page.read_text()
    assert "gsm8k of org/m, default (simulated): 20 runs of 400 samples" in done.stdout
    assert "measured on the first 10 runs" in done.stdout
    assert re.search(r"^ why +S .* exceeds ", done.stdout, re.MULTILINE)
    assert "began on 2026-03-09" in done.stdout
    assert "1.500 points worse" in done.stdout
    assert "8 nights before the decline are too few to know" in " ".join(done.stdout.split())
    monkeypatch.chdir(nights.folder.parent)  # what the commands write
    first = serve_eval(f"runs trend {nights.folder}")
    assert "began on 2026-03-09" in first.stdout
    assert len(first.stdout.splitlines()) <= 22
    follow(first.stdout)
    [chart] = _charts(nights.folder)["series"]
    alarms = [place for place, run in enumerate(chart["runs"]) if run["alarm"]]
    assert alarms == list(range(alarms[0], 20))
    assert 8 <= alarms[0] < 20
    assert chart["alarm"] is True
    assert [run["started_at"][:10] for run in chart["runs"]] == [
        f"{FIRST + timedelta(days=i):%Y-%m-%d}" for i in range(20)
    ]
    [higher] = _charts(nights.folder, "--h 1000")["series"]
    assert (higher["alarm"], higher["h"]) == (False, 1000)
    assert [run["s"] for run in higher["runs"]] == [run["s"] for run in chart["runs"]]


def test_the_limit_is_raised_as_far_as_the_noise_is_an_estimate_and_the_chance_of_a_false_alarm_is_printed(  # noqa: E501
    nights,
):
    for night in range(3):
        nights.add(_noise(night))
    [few] = _charts(nights.folder)["series"]
    done = serve_eval(f"runs trend {nights.folder} -v")
    chance = few["false_alarm"]["chance"]
    assert (
        f"beyond h = {few['h']:g} an unchanged endpoint alarms within 365 runs with a chance of"
        f" {chance:.2g} if its runs are independent (variance measured on 3 runs of 400 prompts)"
        in done.stdout
    )
    assert 8 < few["h"] < 13
    assert 0.01 < chance <= false_alarm_chance(8.0)
    [kept] = _charts(nights.folder, "--h 8")["series"]
    assert kept["h"] == 8
    assert kept["false_alarm"]["chance"] > 2 * chance
    for night in range(3, 12):
        nights.add(_noise(night))
    [many] = _charts(nights.folder)["series"]
    assert many["false_alarm"]["known_from"] == "variance measured on 10 runs of 400 prompts"
    assert 8 < many["h"] < few["h"]


def test_runs_that_differ_as_a_whole_raise_the_noise_and_say_so(nights):
    runs = [nights.add(range(15) if night % 3 == 1 else _noise(night)) for night in range(12)]
    [chart] = _charts(nights.folder)["series"]
    assert chart["dispersion"] > 2
    assert chart["h"] > 14
    scores = [list(column) for column in zip(*map(_scores, runs[:10]), strict=True)]
    assert chart["variance"] == pytest.approx(
        chart["dispersion"] * sum(map(statistics.variance, scores)) / N
    )
    assert chart["sd"] == pytest.approx(100 * (chart["variance"] / N) ** 0.5)
    [warning] = chart["warnings"]
    assert f"is multiplied by {chart['dispersion'] ** 0.5:.3g}" in warning
    assert "because these runs differ as a whole" in chart["variance_from"]


def test_the_sum_is_that_of_the_formula(nights):
    runs = [nights.add(_noise(night, flips)) for night, flips in enumerate((4, 6, 10))]
    [chart] = _charts(nights.folder)["series"]
    values = [_json(run / "report.json")["tasks"][0]["result"]["value"] for run in runs]
    pairs = zip(*(_scores(run) for run in runs), strict=True)
    variances = [sum((v - sum(p) / 3) ** 2 for v in p) / 2 for p in pairs]
    variance = sum(variances) / N
    assert chart["variance"] == pytest.approx(variance)
    sd = 100 * (variance / N) ** 0.5
    z = [
        0.0,
        (values[1] - values[0]) / sd * 0.5**0.5,
        (values[2] - (values[0] + values[1]) / 2) / sd * (2 / 3) ** 0.5,
    ]
    assert [run["z"] for run in chart["runs"]] == pytest.approx(z)
    second = max(0.0, -z[1] - 0.5)
    assert [run["s"] for run in chart["runs"]] == pytest.approx(
        [0.0, second, max(0.0, second - z[2] - 0.5)]
    )
    assert [run["flips"] for run in chart["runs"]] == [None, 10, 16]


def _scores(run):
    lines = [json.loads(line) for line in (run / "scores/gsm8k.jsonl").read_text().splitlines()]
    return [line["value"] for line in sorted(lines, key=lambda line: str(line["id"]))]


def test_where_lower_is_better_a_rise_is_a_decline(nights):
    for night in range(18):
        run = nights.add(_noise(night), to=1.0) if night < 12 else nights.add(range(12))
        metric = _json(run / "report.json")["tasks"][0]["result"]["metric"]
        content = _json(run / "report.json")
        content["tasks"][0]["result"]["metric"] = {**metric, "higher_is_better": False}
        content["tasks"][0]["result"]["value"] = (
            20.0 + (2.0 if night >= 12 else 0.0) + 0.1 * (night % 2)
        )
        (run / "report.json").write_text(json.dumps(content))
    [chart] = _charts(nights.folder)["series"]
    assert chart["higher_is_better"] is False
    assert chart["alarm"] is True
    assert chart["runs"][0]["x"] == -20.0
    assert "2.000 points worse" in chart["warnings"][0]


def test_a_flip_of_a_deterministic_endpoint_is_named(nights):
    for _ in range(4):
        nights.add()
    before = _charts(nights.folder)["series"][0]
    assert (before["variance"], before["warnings"]) == (0.0, [])
    assert before["sd"] == pytest.approx(100 / N)  # the deviation of a single flip
    run = nights.add((3, 5))
    [chart] = _charts(nights.folder)["series"]
    lines = [json.loads(line) for line in (run / "scores/gsm8k.jsonl").read_text().splitlines()]
    assert len(chart["warnings"]) == 1
    assert (
        f"on 2026-03-05 02:00 2 samples changed their score: {lines[3]['id']}, {lines[5]['id']}"
        in str(chart["warnings"])
    )


def test_without_scores_on_file_the_noise_is_the_most_that_it_can_be(nights):
    runs = [nights.add(_noise(night)) for night in range(3)]
    for run in runs:
        shutil.rmtree(run / "scores")
    [chart] = _charts(nights.folder)["series"]
    mean = sum(run["value"] for run in chart["runs"]) / 300
    assert chart["variance"] == pytest.approx(mean * (1 - mean))
    assert "not measured" in chart["variance_from"]
    assert chart["h"] == 8
    assert chart["false_alarm"]["known_from"] == "variance not measured; the largest possible value"
    assert {run["flips"] for run in chart["runs"]} == {None}


def test_a_series_that_cannot_be_charted_hides_no_other(nights):
    bare = nights.add()
    metric = _json(bare / "report.json")["tasks"][0]["result"]["metric"]
    content = _json(bare / "report.json")
    content["tasks"][0]["result"] |= {"metric": {**metric, "hi": None}, "task": "perplexity"}
    (bare / "report.json").write_text(json.dumps(content))
    serve_eval(f"runs trend {nights.folder}", exits=2, tells="the metric has no bounds")
    nights.add()
    found = _charts(nights.folder)
    assert [one["task"] for one in found["series"]] == ["gsm8k"]
    assert "left out: perplexity of org/m" in "\n".join(found["notes"])


def test_what_does_not_belong_together_is_kept_apart_and_said(nights):
    first = nights.add()
    other = nights.add()
    nights.edit(
        other,
        fingerprint={**_json(other / "report.json")["tasks"][0]["fingerprint"], "max_tokens": "7"},
    )
    real = nights.add()
    content = _json(real / "report.json")
    content["plan"]["launcher"] = {"name": "external", "options": {}}
    (real / "report.json").write_text(json.dumps(content))
    many = nights.add(failed=20, scored=N - 20)
    killed = nights.add()
    (killed / "report.json").unlink()
    broken = nights.add()
    (broken / "report.json").write_text("{")
    test = nights.add()
    (test / "report.json").write_text(
        (test / "report.json")
        .read_text()
        .replace('"integration_test": false', '"integration_test": true')
    )
    shutil.copytree(first, nights.folder / "copy")
    found = _charts(nights.folder)
    assert sorted((one["simulated"], len(one["runs"])) for one in found["series"]) == [
        (False, 1),
        (True, 1),
        (True, 1),
    ]
    said = "\n".join(found["notes"])
    assert (
        "left out, because they are unfinished: 1; to finish them: 1 with serve-eval run --resume"
        in said
    )
    assert f"{many}: gsm8k: 20 of 400 answers are missing, more than 2%" in said
    assert f"{broken / 'report.json'} cannot be read" in said
    assert "an integration test" in said
    assert "because their protocols differ: max_tokens" in said
    assert "simulated runs are separate from real ones" in said
    assert f"the same run as {nights.folder / 'copy'}" in said


def test_the_measure_is_one_that_every_run_has(nights):
    reference = {"task": "gsm8k", "model": "org/m", "spec": {}, "value": 81.0, "file": "gsm8k.yaml"}
    runs = [nights.add(_noise(night)) for night in range(3)]
    for run in runs:
        nights.edit(run, reference=reference)
    [chart] = _charts(nights.folder)["series"]
    assert chart["measure"] == "value minus reference"
    assert chart["runs"][0]["x"] == pytest.approx(chart["runs"][0]["value"] - 81.0)
    nights.edit(runs[2], reference={**reference, "value": 60.0})
    [replaced] = _charts(nights.folder)["series"]
    assert replaced["measure"] == "value"
    assert [run["z"] for run in replaced["runs"]] == pytest.approx(
        [run["z"] for run in chart["runs"]]
    )


def test_pairs_and_the_noise_of_a_registered_reference_are_used(data_root, tmp_path):
    flags = [
        "run",
        "--launcher",
        "simulated",
        "--model",
        "org/m",
        "--tasks",
        "gsm8k",
        "--dataset-root",
        data_root,
    ]
    options = ["launcher.accuracy=0.8", "launcher.flip_rate=0.1", "gsm8k.num_samples=300"]
    common = [*flags, *(flag for option in options for flag in ("--set", option))]
    runs = [tmp_path / "old" / str(i) for i in range(2)]
    for i, run in enumerate(runs):
        serve_eval(*common, "--set", f"launcher.run={i}", "--no-reference", "-o", run, exits=3)
    serve_eval(f"references register --references-dir {tmp_path}/refs", *runs, exits=0)
    for i in (2, 3):
        serve_eval(
            *common,
            "--set",
            f"launcher.run={i}",
            "--references-dir",
            tmp_path / "refs",
            "-o",
            tmp_path / f"new/{i}",
            exits=0,
        )
    [chart] = _charts(tmp_path / "new")["series"]
    assert chart["measure"] == "paired difference to the reference"
    assert chart["variance_from"].startswith("measured on the 2 runs of the reference; two of")
    first = [_scores(run) for run in runs]
    assert chart["variance"] == pytest.approx(
        sum((a - b) ** 2 / 2 for a, b in zip(*first, strict=True)) / 300
    )
    paired = [
        _json(tmp_path / f"new/{i}/report.json")["tasks"][0]["verdict"]["paired"]["difference"]
        for i in (2, 3)
    ]
    assert [run["x"] for run in chart["runs"]] == paired


def test_series_are_chosen(nights):
    for night in range(5):
        nights.add(_noise(night))
    chosen = "--task gsm8k --model org/m"
    serve_eval(f"runs trend {nights.folder} {chosen}", exits=0)
    serve_eval(f"runs trend {nights.folder} --model org/n", exits=2, tells="Did you mean 'org/m'?")


def test_folders_without_a_finished_run_are_an_error(nights, tmp_path):
    for place, said in (
        (nights.folder, "contains no finished run"),
        (tmp_path / "nowhere", "no such folder"),
    ):
        done = serve_eval(f"runs trend {place}")
        assert (done.returncode, said in done.stderr, done.stdout) == (2, True, ""), done.stderr
    (nights.add() / "report.json").unlink()
    done = serve_eval(f"runs trend {nights.folder}", exits=2, tells=", only 1 unfinished")
    nights.add(failed=N, scored=0, value=None)
    serve_eval(f"runs trend {nights.folder}", exits=2, tells="no value")
    nights.add()
    serve_eval(f"runs trend {nights.folder} --h 0", exits=2)


def test_no_link_is_followed_and_the_depth_is_bounded(nights):
    run = nights.add()
    (nights.folder / "loop").symlink_to(nights.folder)
    deep = nights.folder.joinpath(*"abcdefghij")
    shutil.copytree(run, deep / "run")
    found = _charts(nights.folder)
    assert [len(one["runs"]) for one in found["series"]] == [1]
    assert "8 folders deep" in str(found["notes"])


def test_an_alarm_is_skipped_in_a_junit_file_and_what_is_left_out_is_said(nights, tmp_path):
    for night in range(16):
        nights.add(range(2 * max(0, night - 8)))
    broken = nights.add()
    (broken / "report.json").write_text("{")
    serve_eval(
        f"runs trend {nights.folder} --junit {tmp_path}/j.xml",
        exits=0,
        prints=f"note     left out: {broken / 'report.json'} cannot be read",
    )
    [case] = ElementTree.parse(tmp_path / "j.xml").getroot().iter("testcase")
    skipped = case.find("skipped")
    assert "decline probably began" in (skipped.get("message") or "")
    quiet = serve_eval(f"runs trend {nights.folder} -q")
    assert (len(quiet.stdout.splitlines()), quiet.stderr) == (1, "")
