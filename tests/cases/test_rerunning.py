"""The requests that a resumed run of cases sends, counted at the endpoint over real sockets."""

import asyncio
import json
import os
import subprocess
import sys
import time
from collections import Counter

import pytest

import serve_eval
from serve_eval.cli._common_options import rerun_of
from serve_eval.errors import DatasetError, PlanError, RunFolderError
from serve_eval.evaluation.evaluate import evaluate, judge_again
from serve_eval.plan import resolve
from serve_eval.storage.run_folder import read_plan
from serve_eval.workflows.references import register
from serve_eval.workflows.rescore import rescore
from tests.cases.made import counting

ROUNDS = 3


class Cases:
    """A case file of `count` questions, which can be changed one by one.

    Each question asks for its own number.
    """

    def __init__(self, file, count):
        self.file = file
        self.questions = {
            f"n{i}": {"input": {"prompt": f"Question {i}: what is {i}?"}, "expected": i}
            for i in range(count)
        }
        self.write()

    def write(self):
        cases = [{"case": name, **one} for name, one in self.questions.items()]
        self.file.write_text(
            json.dumps({"numbers": {"iterations": ROUNDS, "scorer": "exact", "cases": cases}})
        )

    def change(self, name, **more):
        self.questions[name] = {**self.questions[name], **more}
        self.write()

    def prompts(self, *names):
        """Return the requests that these questions cause, or all questions, by prompt."""
        chosen = names or tuple(self.questions)
        return Counter({self.questions[name]["input"]["prompt"]: ROUNDS for name in chosen})


@pytest.fixture
def endpoint():
    with counting() as server:
        yield server


def _run(cases, endpoint, out, rerun="failed", **more):
    settings = {
        "cases": [str(cases.file)],
        "base_url": endpoint.url,
        "model": "m",
        "no_reference": True,
        **more,
    }
    return asyncio.run(
        evaluate(resolve.resolve({}, settings, {}).plan, out, environ={}, rerun=rerun)
    )


def _records(out, place="samples"):
    return sum(file.read_bytes().count(b"\n") for file in out.glob(f"{place}/cases-numbers.jsonl"))


def _withdrawn(out, place="samples"):
    """Return the answers that a kill left without a proof, so that they were asked again."""
    files = out.glob(f"{place}/cases-numbers.jsonl")
    return sum(file.read_bytes().count(b'"withdrawn":') for file in files)


def _archived(out):
    return _records(out, "archive/*/samples")


def _value(report):
    return report.tasks[0].result.value


def test_a_finished_run_asks_nothing_again(tmp_path, endpoint):
    cases, out = Cases(tmp_path / "cases.json.yaml", 5), tmp_path / "out"
    assert _value(_run(cases, endpoint, out)) == 100.0
    assert endpoint.taken() == cases.prompts()
    for rerun in ("never", "failed", "changed", "version"):
        _run(cases, endpoint, out, rerun)
        assert not endpoint.taken(), rerun
    assert not (out / "archive").exists()
    _run(cases, endpoint, out, "all")
    assert endpoint.taken() == cases.prompts()
    assert (_records(out), _archived(out)) == (15, 15)


def test_another_version_of_the_server_is_asked_everything_again_on_wish(tmp_path, endpoint):
    cases, out = Cases(tmp_path / "cases.yaml", 5), tmp_path / "out"
    _run(cases, endpoint, out)
    endpoint.taken()
    endpoint.version = "2.0"
    _run(cases, endpoint, out, "changed")
    assert not endpoint.taken()
    _run(cases, endpoint, out, "version")
    assert endpoint.taken() == cases.prompts()
    assert (_records(out), _archived(out)) == (15, 15)


def test_a_changed_question_is_asked_anew_and_its_old_answers_are_archived_and_never_counted(
    tmp_path, endpoint
):
    cases, out = Cases(tmp_path / "cases.yaml", 5), tmp_path / "out"
    _run(cases, endpoint, out)
    endpoint.taken()
    cases.change("n2", input={"prompt": "Question 2 again: what is wrong?"})
    report = _run(cases, endpoint, out, "never")
    assert endpoint.taken() == cases.prompts("n2")
    assert (_records(out), _archived(out)) == (15, 3)
    assert (report.tasks[0].result.planned, _value(report)) == (15, 80.0)
    assert any(
        "3 records are in archive/ and do not count" in warning for warning in report.warnings
    )
    del cases.questions["n4"]
    cases.write()
    report = _run(cases, endpoint, out)
    assert not endpoint.taken()
    assert (_records(out), _archived(out), report.tasks[0].result.planned) == (12, 6, 12)
    ids = [
        json.loads(line)["id"]
        for line in (out / "samples/cases-numbers.jsonl").read_text().splitlines()
    ]
    assert not [one for one in ids if one.startswith("n4")]


def test_another_expectation_is_scored_without_a_request_and_asked_again_only_on_wish(
    tmp_path, endpoint
):
    cases, out = Cases(tmp_path / "cases.yaml", 5), tmp_path / "out"
    _run(cases, endpoint, out)
    endpoint.taken()
    cases.change("n1", expected="something else")
    assert _value(_run(cases, endpoint, out)) == 80.0
    assert not endpoint.taken()
    _run(cases, endpoint, out, "changed")
    assert endpoint.taken() == cases.prompts("n1")
    _run(cases, endpoint, out, "changed")
    assert not endpoint.taken()
    cases.change("n3", scorer={"words": {"whole_words": True}})
    _run(cases, endpoint, out)
    assert not endpoint.taken()
    _run(cases, endpoint, out, "changed")
    assert endpoint.taken() == cases.prompts("n3")
    assert (_records(out), _archived(out)) == (15, 6)


def test_another_version_of_a_scorer_is_a_change(tmp_path, endpoint, monkeypatch):
    from dataclasses import replace

    from serve_eval.tasks import cases as task

    cases, out = Cases(tmp_path / "cases.yaml", 3), tmp_path / "out"
    cases.change("n0", scorer="words")
    _run(cases, endpoint, out)
    endpoint.taken()
    original = task.scorer_of
    monkeypatch.setattr(
        task,
        "scorer_of",
        lambda spec: (
            replace(original(spec), version=99) if spec.name == "words" else original(spec)
        ),
    )
    _run(cases, endpoint, out)
    assert not endpoint.taken()
    _run(cases, endpoint, out, "changed")
    assert endpoint.taken() == cases.prompts("n0")


def test_another_version_of_the_server_or_of_ours_is_asked_again_on_wish(
    tmp_path, endpoint, monkeypatch
):
    cases, out = Cases(tmp_path / "cases.yaml", 3), tmp_path / "out"
    _run(cases, endpoint, out)
    endpoint.taken()
    endpoint.version = "2.0"
    _run(cases, endpoint, out, "changed")
    assert not endpoint.taken()
    assert _value(_run(cases, endpoint, out, "version")) == 100.0
    assert endpoint.taken() == cases.prompts()
    _run(cases, endpoint, out, "version")
    assert not endpoint.taken()
    monkeypatch.setattr(serve_eval, "__version__", "99.0")
    _run(cases, endpoint, out, "version")
    assert endpoint.taken() == cases.prompts()
    assert (_records(out), _archived(out)) == (9, 18)


def test_failures_are_asked_again_unless_never(tmp_path, endpoint):
    cases, out = Cases(tmp_path / "cases.yaml", 20), tmp_path / "out"
    endpoint.refused = set(cases.prompts("n7"))
    assert _run(cases, endpoint, out).tasks[0].result.failed == 3
    endpoint.taken()
    endpoint.refused = set()
    assert _run(cases, endpoint, out, "never").tasks[0].result.failed == 3
    assert not endpoint.taken()
    assert _run(cases, endpoint, out, "failed").tasks[0].result.failed == 0
    assert endpoint.taken() == cases.prompts("n7")


def test_more_modules_in_the_files_are_added_to_a_run_and_judging_again_counts_them(
    tmp_path, endpoint
):
    cases, out = Cases(tmp_path / "cases.yaml", 3), tmp_path / "out"
    _run(cases, endpoint, out)
    endpoint.taken()
    more = {"case": "x", "input": {"prompt": "Question x: what is y?"}, "expected": "y"}
    cases.file.write_text(json.dumps({**json.loads(cases.file.read_text()), "others": [more]}))
    report = _run(cases, endpoint, out)
    # The module of the new question sets no iterations.
    assert endpoint.taken() == {"Question x: what is y?": 1}
    assert [task.result.task for task in report.tasks] == ["cases:numbers", "cases:others"]
    assert [task.result.value for task in judge_again(read_plan(out), out).tasks] == [100.0, 100.0]


def test_what_is_chosen_for_all_cases_stays_bound_to_the_folder(tmp_path, endpoint):
    cases, out = Cases(tmp_path / "cases.yaml", 3), tmp_path / "out"
    _run(cases, endpoint, out)
    with pytest.raises(
        RunFolderError, match=r"tasks\.cases:numbers\.temperature: was null, now 0\.5"
    ):
        _run(cases, endpoint, out, choices={"temperature": 0.5})


def test_a_run_is_scored_again_by_another_scorer_and_registered(tmp_path, endpoint):
    cases, out = Cases(tmp_path / "cases.yaml", 4), tmp_path / "out"
    cases.change("n2", expected="22|2")
    assert _value(_run(cases, endpoint, out)) == 75.0
    [again] = rescore(out, ["cases:numbers.scorer=words"])
    assert (again.before, again.after, again.moved) == (75.0, 100.0, 3)
    rescore(out, ["cases:numbers.scorer=words"], to=tmp_path / "new")
    assert (
        json.loads((tmp_path / "new/report.json").read_text())["tasks"][0]["result"]["value"]
        == 100.0
    )
    with pytest.raises(PlanError, match="decides what is asked"):
        rescore(out, ["cases:numbers.system_messages=[Be brief.]"])
    [written] = register([out], tmp_path / "refs")
    assert (written.value, written.runs) == (75.0, 3)
    judged = _run(
        cases,
        endpoint,
        tmp_path / "other",
        no_reference=False,
        references_dir=str(tmp_path / "refs"),
    )
    assert judged.tasks[0].verdict.outcome == "PASS"
    assert judged.tasks[0].verdict.paired is not None
    cases.change("n1", input={"prompt": "Question 1 again: what is 1?"})
    with pytest.raises(DatasetError) as error:
        rescore(out)
    assert "The cases changed" in error.value.hint


def test_a_torn_line_costs_one_question_and_a_damaged_one_is_told(tmp_path, endpoint):
    cases, out = Cases(tmp_path / "cases.yaml", 3), tmp_path / "out"
    _run(cases, endpoint, out)
    endpoint.taken()
    told = out / "cases/cases-numbers.jsonl"
    told.write_bytes(told.read_bytes()[:-5])
    _run(cases, endpoint, out, "changed")
    assert sum(endpoint.taken().values()) == 1
    _run(cases, endpoint, out, "changed")
    assert not endpoint.taken()
    told.write_bytes(b"damaged\n" + told.read_bytes())
    with pytest.raises(RunFolderError, match=r"cases-numbers\.jsonl:1: a damaged record"):
        _run(cases, endpoint, out, "changed")


def test_the_words_of_rerun():
    assert rerun_of("changed") == "changed"
    with pytest.raises(
        PlanError, match="'always' is not one of never, failed, changed, version, all"
    ):
        rerun_of("always")


# --------------------------------------------------------------------------------------------------
# all together


@pytest.mark.slow
def test_three_hundred_cases_three_times_killed_resumed_and_changed(tmp_path, endpoint):
    cases, out = Cases(tmp_path / "cases.yaml", 300), tmp_path / "out"
    command = [
        sys.executable,
        "-m",
        "serve_eval",
        "run",
        "--cases",
        str(cases.file),
        "--base-url",
        endpoint.url,
    ]
    command += ["--model", "m", "--no-reference", "--concurrency", "16", "-o", str(out)]
    kept = {k: v for k, v in os.environ.items() if not k.startswith(("SERVE_EVAL_", "OPENAI_"))}

    def run(*more):
        done = subprocess.run(
            [*command, *more], env=kept, capture_output=True, text=True, timeout=300, check=False
        )
        assert done.returncode == 3, done.stderr  # no reference
        return endpoint.taken()

    endpoint.pause_s = 0.05
    for _ in range(3):
        had = _records(out)
        with subprocess.Popen(
            command, env=kept, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
        ) as process:
            while _records(out) < had + 100:
                assert process.poll() is None
                time.sleep(0.02)
            process.kill()
    endpoint.pause_s = 0.0
    endpoint.taken()
    had, unproven = _records(out), _withdrawn(out)
    assert 300 <= had < 900
    asked = run()
    again = _withdrawn(out)
    assert sum(asked.values()) == 900 - (had - 2 * unproven) + again - unproven
    assert max(asked.values()) <= ROUNDS
    assert (_records(out), run()) == (900 + 2 * again, Counter())

    cases.change("n123", input={"prompt": "Question 123 again: what is 123?"})
    assert run() == cases.prompts("n123")
    cases.change("n45", scorer="words")
    assert run() == Counter()
    assert run("--rerun", "changed") == cases.prompts("n45")
    endpoint.version = "2.0"
    assert run("--rerun", "changed") == Counter()
    assert run("--rerun", "version") == cases.prompts()
    assert run("--rerun", "all") == cases.prompts()
    assert _records(out) - 2 * _withdrawn(out) == 900
    assert _archived(out) - 2 * _withdrawn(out, "archive/*/samples") == 3 + 3 + 900 + 900
    result = json.loads((out / "report.json").read_text())["tasks"][0]["result"]
    assert (result["planned"], result["scored"], result["value"]) == (900, 900, 100.0)
