"""Questions on passages, asked over HTTP: a misread passage counts once, in every command."""

import json
import re
from itertools import groupby
from pathlib import Path

import pytest

from serve_eval.workflows.diagnose.evidence import read
from tests.cli.command import serve_eval
from tests.json_files import read_json
from tests.scripted_server import ScriptedServer, after, answer, models

PASSAGES, EACH = 40, 5
WORDS = "tides sails harbours storms ropes "
LOST, WON = range(14), range(14, 22)
"""The passages that only B misreads, and those that only A misreads."""


def _passage(number):
    return f"Passage {number}. {WORDS * 10}of the sea number {number}."


def _write(group):
    cases = [
        {
            "case": f"p{p}:q{q}",
            "input": {"prompt": f"{_passage(p)}\nQuestion {q}: which is {p}-{q}"},
            "expected": f"{p}-{q}",
        }
        for p in range(PASSAGES)
        for q in range(EACH)
    ]
    more = {"group": "^(p[0-9]+):"} if group else {}
    Path("cases.yaml").write_text(json.dumps({"sea": {"scorer": "exact", **more, "cases": cases}}))


class _Side:
    """A server that misreads some passages, all questions on them, when more are in flight."""

    def __init__(self, misread, above=0):
        self._starts = tuple(f"Passage {p}. " for p in misread)
        self._above = above

    def reply(self, request):
        if not request.chat or not request.prompt.startswith("Passage"):
            return answer(" 1")
        wrong = request.prompt.startswith(self._starts) and request.in_flight > self._above
        said = answer("no" if wrong else request.prompt.split()[-1])
        return after(0.005, said) if self._above else said


@pytest.fixture(scope="module")
def sides():
    servers = [
        ScriptedServer(_Side(one).reply, routes={"/v1/models": models("m")}) for one in (WON, LOST)
    ]
    with servers[0].serve_in_thread() as a, servers[1].serve_in_thread() as b:
        yield a, b


@pytest.fixture(scope="module")
def runs(sides, tmp_path_factory):
    """Return a folder with a run of A, its reference, and a run of B that is judged by it."""
    folder = tmp_path_factory.mktemp("groups")
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)
        _write(group=True)
        asked = "--cases cases.yaml --quiet"
        a, b = (["--base-url", side, "--model", "m"] for side in sides)
        serve_eval(f"run --no-reference -o A {asked}", *a, exits=3)
        serve_eval("references register A --references-dir refs", exits=0)
        rule = "--references-dir refs --verdict paired -o B"
        serve_eval(f"run {asked} {rule}", *b, exits=3)
    return folder


@pytest.fixture(autouse=True)
def _here(runs, monkeypatch):
    monkeypatch.chdir(runs)


def _verdict(report="B/report.json"):
    return read_json(Path(report))["tasks"][0]["verdict"]


def test_a_run_counts_passages_and_not_questions():
    verdict = _verdict()
    assert verdict["outcome"] == "INCONCLUSIVE"
    paired = verdict["paired"]
    assert (paired["down"], paired["up"], paired["pairs"]) == (70, 40, 200)
    assert paired["p"] == pytest.approx(0.1050, abs=1e-4)  # 14 or more of 22 passages, mid-p
    assert not any("shared_text" in line for line in verdict["warnings"])


def test_the_interval_of_the_value_is_that_of_passages():
    result = read_json("B/report.json")["tasks"][0]["result"]
    low, high = result["interval"]
    assert result["value"] == 65.0
    assert (low, high) == pytest.approx((48.9, 78.2), abs=0.5)  # of single questions: 58.2, 71.3


def test_texts_name_the_groups_and_power_plans_with_them():
    assert "200 prompts in 40 groups" in serve_eval("judge B").stdout
    paired = _verdict()["paired"]
    assert paired["groups"] == 40
    assert paired["design_effect"] == pytest.approx(5.0, abs=0.2)
    least = {}
    for effect in ([], ["--set", "power.design_effect=1"]):
        done = serve_eval("references power --from B --detect 5", *effect, exits=0)
        line = next(one for one in done.stdout.splitlines() if one.startswith(" paired  "))
        least[bool(effect)] = int(line.split()[1].replace(",", ""))
        assert ("design effect 5" in done.stdout) is not bool(effect)
    assert least[False] / least[True] == pytest.approx(paired["design_effect"], rel=0.01)


def test_a_dry_run_plans_with_the_groups_of_the_reference(sides):
    asked = f"--cases cases.yaml --base-url {sides[1]} --model m --dry-run"
    done = serve_eval(f"run --references-dir refs --verdict paired {asked}", exits=0)
    said = "groups: 200 prompts in 40 groups tell a paired rule as much as 39 independent ones"
    assert f"{said} (design effect 5.1" in done.stdout
    assert "of the reference's run)" in done.stdout
    assert "proven drop" not in done.stdout  # one run shows no flips
    rule = "--references-dir refs --verdict classic"
    assert "groups:" not in serve_eval(f"run {asked} {rule}").stdout


def test_a_margin_that_the_groups_can_never_exclude_is_refused(sides):
    """200 equal single answers exclude 2 points, 40 passages only 6.4."""
    asked = f"--cases cases.yaml --base-url {sides[0]} --model m -o never"
    rule = "--references-dir refs --verdict noninferiority --set verdict.margin=6"
    done = serve_eval(
        f"run {asked} {rule}",
        exits=2,
        tells="200 prompts in 40 groups with 1 and 1 answers of the two sides",
    )
    assert "exclude no drop below 6.34 points" in done.stderr
    assert "ask 215 prompts or more" in done.stderr
    assert "set a margin of 6.34 points or more" in done.stderr


def test_power_takes_the_design_effect_of_the_references_runs(sides):
    serve_eval("references register A B --references-dir refs2", exits=0)
    asked = f"--cases cases.yaml --base-url {sides[0]} --model m"
    judged = "--references-dir refs2 --verdict paired"
    planned = serve_eval(f"run --dry-run {asked} {judged}").stdout
    assert "(design effect 5, of the reference's 2 runs)" in planned
    assert re.search(r"proven drop: \d+\.\d\d points with a probability of 0\.8", planned)
    assert "at a flip rate of 0.55, that of the reference's 2 runs" in planned
    serve_eval(f"run -o C {asked} {judged}")
    serve_eval(
        "references power --from C --detect 5",
        exits=0,
        prints="design effect 5, of the reference's 2 runs: prompts share groups",
    )
    done = serve_eval("references power --from C --detect 5 --set power.design_effect=2")
    assert "design effect 2: prompts share groups" in done.stdout


def test_the_scores_keep_the_group_and_an_export_has_it():
    lines = [json.loads(line) for line in Path("B/scores/cases-sea.jsonl").read_text().splitlines()]
    assert {line["group"] for line in lines} == {f"p{p}" for p in range(PASSAGES)}
    serve_eval("runs export B -o exported", exits=0)
    [file] = Path("exported").rglob("samples_*.jsonl")
    first = json.loads(file.read_text().splitlines()[0])
    assert first["doc"]["group"] == "p0"


def test_a_comparison_of_the_folders_agrees_with_the_run():
    serve_eval("compare A B -o compared", exits=3)
    told = read_json("compared/comparison.json")
    assert told["tasks"][0]["verdict"]["paired"]["p"] == pytest.approx(_verdict()["paired"]["p"])


def test_without_the_group_the_same_answers_fail_and_a_warning_says_why():
    try:
        _write(group=False)
        done = serve_eval("judge B --json", exits=1)
        [task] = json.loads(done.stdout)["result"]["tasks"]
        assert task["verdict"]["outcome"] == "FAIL"
        assert task["verdict"]["paired"]["p"] < 0.01
        said = [line for line in task["verdict"]["warnings"] if line.startswith("shared_text")]
        assert said[0].startswith("shared_text: 200 of 200 prompts share a long text with others")
    finally:
        _write(group=True)
    again = serve_eval("judge B --json", exits=3)
    assert json.loads(again.stdout)["result"]["tasks"][0]["verdict"] == _verdict()


def test_rescored_answers_keep_their_groups():
    serve_eval("judge --rescore B -o rescored", exits=0)
    assert _verdict("rescored/report.json")["paired"]["p"] == _verdict()["paired"]["p"]


def test_load_counts_passages_too():
    # Five passages are misread whenever requests are in flight together.
    server = ScriptedServer(_Side(range(5), above=1).reply, routes={"/v1/models": models("m")})
    with server.serve_in_thread() as url:
        asked = "--cases cases.yaml --model m --concurrency 1,8"
        done = serve_eval(f"check load {url} -o load --json {asked}", exits=0)
        [task] = json.loads(done.stdout)["result"]["tasks"]
        point = task["points"][-1]
        assert point["lost"] > 15  # as single questions: p below .0001
        assert point["p"] == pytest.approx(2.0 * 0.5**5)


def _stop_early(url, rule, out, *more):
    """Run with an early stop and return the verdict."""
    asked = ["--cases", "cases.yaml", "--base-url", url, "--model", "m", "--early-stop"]
    judged = ["--references-dir", "refs", "--verdict", rule, "--set", "verdict.max_missing=0.2"]
    done = serve_eval(f"run -o {out}", *asked, *judged, *more)
    assert done.returncode in (0, 1), done.stdout + done.stderr
    return _verdict(f"{out}/report.json")


def _asked(out):
    """Return the passages of a run in the order of their questions' answers."""
    lines = Path(out, "samples/cases-sea.jsonl").read_text().splitlines()
    return [json.loads(line)["id"].split(":")[0] for line in lines]


def test_an_early_stop_by_pairs_asks_passages_whole_and_stops(sides):
    margin = ["--set", "verdict.margin=40", "--concurrency", "1"]
    verdict = _stop_early(sides[0], "noninferiority", "early", *margin)
    early = verdict["early"]
    assert (verdict["outcome"], early["stopped"], early["groups"]) == ("PASS", True, PASSAGES)
    assert early["looked_at"] % EACH == 0
    assert 0 < early["looked_at"] < PASSAGES * EACH
    passages = [name for name, _ in groupby(_asked("early"))]
    assert len(passages) == len(set(passages)) < PASSAGES
    assert passages != sorted(passages, key=lambda name: int(name[1:]))
    # The course of such a run cannot be judged, nor what was in flight together.
    assert not read(Path("early")).in_random_order
    assert f"after {early['looked_at']} of 200 in whole groups" in serve_eval("judge early").stdout
    serve_eval("run --resume early --no-early-stop", exits=0)
    whole = _verdict("early/report.json")["paired"]
    assert (whole["groups"], whole["alpha"]) == (PASSAGES, 0.025)
    assert not read(Path("early")).in_random_order


def test_an_early_stop_by_the_classic_rule_draws_single_questions(sides):
    verdict = _stop_early(sides[0], "classic", "classic", "--concurrency", "1")
    assert verdict["early"]["groups"] is None
    passages = [name for name, _ in groupby(_asked("classic"))]
    assert len(passages) > len(set(passages))
    assert read(Path("classic")).in_random_order
