"""Test case files in plans and suites, with iterations of their own."""

import asyncio
import json

import pytest

from serve_eval.errors import NotComparableError, PlanError, RunFolderError
from serve_eval.evaluation.evaluate import evaluate, judge_again
from serve_eval.evidence.answer_pairs import read_task
from serve_eval.plan import resolve
from serve_eval.plan.plan_file import to_file
from serve_eval.schema import Spec
from serve_eval.storage.report_file import read_report
from serve_eval.storage.run_folder import read_plan
from serve_eval.workflows.compare.compare import CompareRules, CompareSide, compare
from serve_eval.workflows.export import export
from serve_eval.workflows.references import register
from serve_eval.workflows.rescore import rescore
from serve_eval.workflows.suite.execution import evaluate_suite
from serve_eval.workflows.suite.file import read as read_suite
from tests.cases.made import counting, write_biochatter


@pytest.fixture
def cases(tmp_path, monkeypatch):
    """Return a file with two modules in the working directory."""
    monkeypatch.chdir(tmp_path)
    _write(tmp_path / "cases.yaml", 3, 3)
    return tmp_path / "cases.yaml"


def _write(path, first, second, answer="x"):
    def module(name, iterations):
        case = {
            "case": "a",
            "input": {"prompt": f"Question of {name}: {answer}"},
            "expected": answer,
        }
        return {**({"iterations": iterations} if iterations else {}), "cases": [case]}

    path.write_text(json.dumps({"one": module("one", first), "two": module("two", second)}))


def _resolve(file=None, **settings):
    return resolve.resolve(file or {}, {"launcher": "simulated", **settings}, {})


def test_every_module_is_a_task_asked_as_often_as_the_file_says(cases):
    found = _resolve(cases=["cases.yaml"])
    assert [(task.name, task.options) for task in found.plan.tasks] == [
        ("cases:one", {"path": str(cases)}),
        ("cases:two", {"path": str(cases)}),
    ]
    assert (found.plan.repeats, found.plan.repeats_of) == (1, {"cases:one": 3, "cases:two": 3})
    always = _resolve(cases=["cases.yaml"], repeats=1).plan
    assert (always.repeats, always.repeats_of) == (1, {})
    again = resolve.resolve(to_file(found.plan), {}, {})
    assert again.plan == found.plan


def test_tasks_choose_modules_and_stand_beside_others(cases):
    named = _resolve({"cases": "cases.yaml", "tasks": ["gsm8k", "cases:two"]})
    assert [task.name for task in named.plan.tasks] == ["gsm8k", "cases:two"]
    assert dict(named.plan.tasks[1].options) == {"path": str(cases)}
    chosen = _resolve(cases=["cases.yaml"], tasks=["cases:one"])
    assert [task.name for task in chosen.plan.tasks] == ["cases:one"]
    beside = _resolve(cases=["cases.yaml"], tasks=["gsm8k"])
    assert [task.name for task in beside.plan.tasks] == ["gsm8k", "cases:one", "cases:two"]


def test_a_task_that_the_plan_has_already_is_not_there_twice(cases):
    saved = to_file(_resolve(cases=["cases.yaml"], tasks=["cases:two"]).plan)
    found = resolve.resolve(saved, {"cases": ["."]}, {})
    assert [(task.name, task.options) for task in found.plan.tasks] == [
        ("cases:two", {"path": str(cases)}),
        ("cases:one", {"path": str(cases.parent)}),
    ]


def test_options_are_set_by_name(cases):
    found = _resolve(cases=["cases.yaml"], set=["cases:one.scorer={words: {ignore_case: false}}"])
    options = {task.name: task.options for task in found.plan.tasks}
    assert options["cases:one"]["scorer"] == {"words": {"ignore_case": False}}
    with pytest.raises(
        PlanError,
        match=r"^tasks\[0\]\.cases:one: scorer: unknown scorer 'wrds'\. Did you mean 'words'\?$",
    ):
        _resolve(cases=["cases.yaml"], set=["cases:one.scorer=wrds"])


@pytest.mark.parametrize(
    ("first", "second", "given", "times"),
    [
        (2, 3, {}, {"gsm8k": 1, "cases:one": 2, "cases:two": 3}),
        (None, 4, {}, {"gsm8k": 1, "cases:one": 1, "cases:two": 4}),
        # A number for one task in the plan overrides its case file, and a number for all tasks
        # overrides both.
        (
            2,
            3,
            {"repeats": {"gsm8k": 5, "cases:two": 1}},
            {"gsm8k": 5, "cases:one": 2, "cases:two": 1},
        ),
        (2, 3, {"repeats": 4}, {"gsm8k": 4, "cases:one": 4, "cases:two": 4}),
        (2, 3, {"tasks": ["cases:one"]}, {"cases:one": 2}),
    ],
)
def test_iterations_are_those_of_a_task_and_of_no_other(cases, first, second, given, times):
    _write(cases, first, second)
    tasks = ["gsm8k", "cases:one", "cases:two"]
    found = _resolve({"cases": "cases.yaml", "tasks": tasks, **given}).plan
    assert {task.name: found.times(task.name) for task in found.tasks} == times
    again = resolve.resolve(to_file(found), {}, {}).plan
    assert again == found
    assert {task.name: again.times(task.name) for task in again.tasks} == times
    flag = resolve.resolve(to_file(found), {"repeats": 7}, {}).plan
    assert {flag.times(task.name) for task in flag.tasks} == {7}


def test_a_file_of_its_own_is_not_asked_as_often_as_another_says(cases):
    _write(cases.with_name("own.yaml"), None, None)
    tasks = [{"cases:one": {"path": str(cases.with_name("own.yaml"))}}, "cases:two"]
    found = _resolve({"cases": "cases.yaml", "tasks": tasks}).plan
    assert (found.times("cases:one"), found.times("cases:two")) == (1, 3)


@pytest.mark.parametrize(
    ("repeats", "problem"),
    [
        ({"gsm8k": 0}, "repeats.gsm8k: must be 1 or more, not 0"),
        ({"gsm8": 2}, "repeats.gsm8: is not a task of this run. Did you mean 'gsm8k'?"),
        (0, "repeats: must be 1 or more, not 0"),
    ],
)
def test_repeats_that_cannot_be_meant_are_told(repeats, problem):
    with pytest.raises(PlanError) as error:
        _resolve({"tasks": ["gsm8k"], "repeats": repeats})
    assert error.value.problems == [problem]


def test_a_module_of_which_nothing_can_be_asked_is_told_and_runs_once_its_options_say_how(
    tmp_path,
):
    write_biochatter(tmp_path)
    found = _resolve(cases=[str(tmp_path)])
    assert [task.name for task in found.plan.tasks] == [
        "cases:medical_exam",
        "cases:twice",
        "cases:rag_interpretation",
    ]
    assert any(
        note.startswith("cases:text_extraction: all 8 cases are skipped: it has no prompt")
        for note in found.notes
    )
    assert len(found.notes) == 7
    options = [
        'cases:text_extraction.prompt="${caption} ${query}"',
        "cases:text_extraction.scorer=exact",
    ]
    told = _resolve(cases=[str(tmp_path)], set=options)
    assert "cases:text_extraction" in [task.name for task in told.plan.tasks]


def test_problems_of_case_files_are_told_with_those_of_the_plan(cases):
    cases.write_text("one: 3\n")
    with pytest.raises(PlanError) as error:
        _resolve({"limit": 0, "cases": "cases.yaml"})
    assert error.value.problems == [
        f"{cases}:1: one: expected a list of cases, or a mapping with `cases`",
        "limit: must be 1 or more, not 0",
    ]


def test_a_module_that_is_not_there_is_told(cases):
    with pytest.raises(PlanError, match=r"no cases are named 'on'\. Did you mean 'one'"):
        _resolve(cases=["cases.yaml"], tasks=["cases:on"])
    with pytest.raises(PlanError, match="cases is a family of tasks: name one of them, cases:NAME"):
        _resolve(tasks=["cases"])


# --------------------------------------------------------------------------------------------------
# suites


def _suite(folder, endpoint, rerun="failed"):
    (folder / "suite.yaml").write_text(
        json.dumps(
            {
                "defaults": {"cases": "cases.yaml", "base_url": endpoint.url, "no_reference": True},
                "plans": [{"name": "a", "model": "m"}, {"name": "b", "model": "m", "seed": 1}],
            }
        )
    )
    suite = read_suite(folder / "suite.yaml", {})
    return asyncio.run(evaluate_suite(suite, folder / "out", environ={}, rerun=rerun))


def test_a_finished_run_of_a_suite_is_kept_until_its_cases_change(cases):
    with counting() as endpoint:
        report = _suite(cases.parent, endpoint)
        assert [(run.name, run.kept) for run in report.runs] == [("a", False), ("b", False)]
        assert sum(endpoint.taken().values()) == 2 * 2 * 3
        assert [run.kept for run in _suite(cases.parent, endpoint).runs] == [True, True]
        assert not endpoint.taken()
        _write(cases, 3, 3, answer="other")
        report = _suite(cases.parent, endpoint)
        assert [run.kept for run in report.runs] == [False, False]
        assert sum(endpoint.taken().values()) == 2 * 2 * 3
        assert {row.evaluated for row in report.rows} == {100.0}
        assert any(
            "6 records are in" in w or "3 records are in" in w
            for run in report.runs
            for w in run.warnings
        )
        _suite(cases.parent, endpoint, "all")
        assert sum(endpoint.taken().values()) == 2 * 2 * 3


def test_a_suite_of_other_plans_is_still_another_suite(cases):
    with counting() as endpoint:
        _suite(cases.parent, endpoint)
        (cases.parent / "suite2.yaml").write_text(
            (cases.parent / "suite.yaml").read_text().replace('"seed": 1', '"seed": 2')
        )
        with pytest.raises(RunFolderError, match=r"b\.seed: was 1, now 2"):
            asyncio.run(
                evaluate_suite(
                    read_suite(cases.parent / "suite2.yaml", {}), cases.parent / "out", environ={}
                )
            )


PLAIN, LIMIT = "word_problems", 5
TIMES = {PLAIN: 1, "cases:threes": 3, "cases:twos": 2}


@pytest.fixture
def endpoint():
    with counting() as server:
        yield server


@pytest.fixture
def files(tmp_path):
    for name, times in (("threes", 3), ("twos", 2)):
        cases = [
            {
                "case": f"n{i}",
                "input": {"prompt": f"Question {i} of {name}: what is {i}?"},
                "expected": i,
            }
            for i in range(LIMIT)
        ]
        content = {name: {"iterations": times, "scorer": "exact", "cases": cases}}
        (tmp_path / f"{name}.yaml").write_text(json.dumps(content))
    return [str(tmp_path / f"{name}.yaml") for name in ("threes", "twos")]


def _settings(files, url, **more):
    told = {
        "tasks": [PLAIN],
        "cases": files,
        "base_url": url,
        "model": "m",
        "no_reference": True,
        "limit": LIMIT,
    }
    return {name: value for name, value in {**told, **more}.items() if value is not None}


def _run(files, url, out, **more):
    return asyncio.run(
        evaluate(resolve.resolve({}, _settings(files, url, **more), {}).plan, out, environ={})
    )


def _asked(endpoint):
    """Return the number of requests since the last call."""
    continued, endpoint.continued = endpoint.continued, 0
    return continued + sum(endpoint.taken().values())


def _planned(report):
    return {task.result.task: task.result.planned for task in report.tasks}


def test_every_task_is_asked_as_often_as_its_own_file_says(files, endpoint, tmp_path):
    out = tmp_path / "out"
    report = _run(files, endpoint.url, out)
    wanted = {name: LIMIT * times for name, times in TIMES.items()}
    assert _planned(report) == wanted
    assert _asked(endpoint) == sum(wanted.values())
    told = {task.result.task: task.result.stability for task in report.tasks}
    assert {name: 1 if one is None else one.repeats for name, one in told.items()} == TIMES

    # Commands that read the folder use the same numbers.
    again = read_report(out)
    assert again.plan.repeats_of == {"cases:threes": 3, "cases:twos": 2}
    assert {name: len(read_task(out, again, name).lines) for name in TIMES} == TIMES
    assert _planned(judge_again(read_plan(out), out)) == wanted
    assert {one.task: one.answered for one in rescore(out)} == wanted

    responses = {
        file.name: len(json.loads(file.read_text().splitlines()[0])["resps"][0])
        for file in export(out, tmp_path / "exported").files
        if file.name.startswith("samples_")
    }
    assert sorted(responses.values()) == sorted(TIMES.values())

    # A resumed run asks only what is missing, even if the number for all tasks has changed.
    journal = out / "samples" / "cases-threes.jsonl"
    journal.write_bytes(b"".join(journal.read_bytes().splitlines(keepends=True)[4:]))
    (out / "report.json").unlink()
    assert _planned(_run(files, endpoint.url, out)) == wanted
    assert _asked(endpoint) == 4
    assert _planned(_run(files, endpoint.url, out, repeats=3)) == dict.fromkeys(TIMES, 3 * LIMIT)
    assert _asked(endpoint) == (2 + 0 + 1) * LIMIT


def test_a_comparison_asks_both_sides_as_often_and_twice_what_is_asked_once(
    files, endpoint, tmp_path
):
    sides = [
        CompareSide(plan=resolve.resolve({}, _settings(files, endpoint.url), {}).plan)
        for _ in range(2)
    ]
    rules = CompareRules(rule=Spec(name="paired"), again=100)
    found = asyncio.run(compare(sides[0], sides[1], rules, tmp_path / "out", environ={}))
    assert {task.task: (task.a.planned, task.b.planned) for task in found.tasks} == {
        name: (LIMIT * times,) * 2 for name, times in TIMES.items()
    }
    assert [task.result.task for task in read_report(tmp_path / "out" / "again").tasks] == [PLAIN]
    assert all(task.itself is not None and task.itself.prompts == LIMIT for task in found.tasks)
    anchors = CompareRules(rule=Spec(name="anchors"), again=0)
    with pytest.raises(NotComparableError, match="answer each prompt at least 2 times"):
        asyncio.run(compare(sides[0], sides[1], anchors, tmp_path / "other", environ={}))


def test_every_repeat_of_a_task_counts_as_a_run_of_its_reference(files, endpoint, tmp_path):
    _run(files, endpoint.url, tmp_path / "out", tasks=None, limit=None)
    written = register([tmp_path / "out"], tmp_path / "references")
    assert sorted(one.runs for one in written) == [2, 3]


def test_the_runs_of_a_suite_keep_to_their_own_files(files, tmp_path):
    runs = [
        {"name": "cases", "cases": files},
        {"name": "plain", "tasks": [PLAIN]},
        {"name": "both", "tasks": [PLAIN], "cases": files},
    ]
    defaults = {"model": "m", "base_url": "host:1"}
    (tmp_path / "suite.yaml").write_text(json.dumps({"defaults": defaults, "plans": runs}))
    suite = read_suite(tmp_path / "suite.yaml", {})
    told = {
        run.name: {task.name: run.plan.times(task.name) for task in run.plan.tasks}
        for run in suite.runs
    }
    assert told == {
        "cases": {"cases:threes": 3, "cases:twos": 2},
        "plain": {PLAIN: 1},
        "both": TIMES,
    }
