"""Test that a reference judges no run with another version or other options of a scorer."""

import asyncio
import json
import re

import pytest
import yaml

from serve_eval.errors import NotComparableError, ServeEvalError
from serve_eval.evaluation.evaluate import evaluate, judge_again
from serve_eval.evaluation.prepare import prepare
from serve_eval.plan import resolve
from serve_eval.protocol.sampling_fields import fingerprint, protocol_differences
from serve_eval.schema import DataRoots, VerdictOutcome
from serve_eval.storage.run_folder import read_plan
from serve_eval.tasks import cases
from serve_eval.workflows.references import register
from serve_eval.workflows.rescore import rescore
from tests.cases.made import counting
from tests.cli.command import serve_eval

COUNT = 6
LENIENT = {"numeric": {"absolute": 10}}
NESTED = {"any_of": {"scorer": {"numeric": {"absolute": 10}}}}


@pytest.fixture
def endpoint():
    with counting() as server:
        yield server


def _write(file, scorer, *, off=0, count=COUNT):
    """Write cases whose answers are right if `off` is 0."""
    listed = isinstance(scorer, dict) and "any_of" in scorer
    content = [
        {
            "case": f"n{i}",
            "input": {"prompt": f"Question: what is {i}?"},
            "expected": [i + off] if listed else i + off,
        }
        for i in range(count)
    ]
    file.write_text(json.dumps({"sums": {"scorer": scorer, "cases": content}}))
    return file


def _plan(file, endpoint, refs, **more):
    judged = {"no_reference": True} if refs is None else {"references_dir": str(refs)}
    settings = {"cases": [str(file)], "base_url": endpoint.url, "model": "m", **judged, **more}
    return resolve.resolve({}, settings, {}).plan


def _run(file, endpoint, out, refs, **more):
    return asyncio.run(evaluate(_plan(file, endpoint, refs, **more), out, environ={}))


def _register(file, endpoint, tmp_path):
    _run(file, endpoint, tmp_path / "first", None)
    register([tmp_path / "first"], tmp_path / "refs")
    return tmp_path / "refs"


def _make_older(refs):
    """Leave out what references of earlier versions did not record."""
    [file] = refs.glob("*.yaml")
    content = yaml.safe_load(file.read_text())
    for entries in content.values():
        for entry in entries if isinstance(entries, list) else [entries]:
            for field in ("scorer_options", "cases"):
                entry["protocol"].pop(field, None)
    file.write_text(yaml.safe_dump(content))


@pytest.mark.parametrize(
    ("taken", "scored", "named"),
    [
        ("numeric", LENIENT, "scorer_options is {'numeric': {'absolute': 10}} here and None with"),
        (LENIENT, "numeric", "scorer_options is None here and {'numeric': {'absolute': 10}} with"),
        (
            LENIENT,
            {"numeric": {"absolute": 5}},
            "{'absolute': 5}} here and {'numeric': {'absolute': 10}} with",
        ),
        (
            {"any_of": {"scorer": "numeric"}},
            NESTED,
            "scorer_options is {'any_of/numeric': {'absolute': 10}} here and None with",
        ),
    ],
)
@pytest.mark.parametrize("older", [False, True])
def test_other_options_of_a_scorer_are_refused_and_named(
    tmp_path, endpoint, taken, scored, named, older
):
    refs = _register(_write(tmp_path / "taken.yaml", taken), endpoint, tmp_path)
    other = _write(tmp_path / "scored.yaml", scored)
    if older:
        _make_older(refs)
        named = "the protocol differs"
    with pytest.raises(NotComparableError, match=re.escape(named)):
        _run(other, endpoint, tmp_path / "out", refs)
    allowed = _run(
        other, endpoint, tmp_path / "wish", refs, allow_mismatch=["scorer_options", "cases"]
    )
    assert allowed.tasks[0].verdict.outcome is VerdictOutcome.PASS


def test_the_command_refuses_before_it_asks_and_in_a_dry_run(tmp_path, endpoint):
    refs = _register(_write(tmp_path / "taken.yaml", "numeric"), endpoint, tmp_path)
    lenient = _write(tmp_path / "lenient.yaml", LENIENT)
    endpoint.taken()
    command = ["run", "--cases", lenient, "--base-url", endpoint.url, "--model", "m"]
    for more in ([], ["--dry-run"]):
        done = serve_eval(*command, "--references-dir", refs, "-o", tmp_path / "out", *more)
        assert done.returncode == 3, done.stdout + done.stderr
        assert "scorer_options is {'numeric': {'absolute': 10}} here" in done.stdout + done.stderr
    assert not endpoint.taken()


@pytest.mark.parametrize(("off", "count"), [(1, COUNT), (0, COUNT + 1)])
def test_other_expected_values_and_more_cases_are_refused(tmp_path, endpoint, off, count):
    refs = _register(_write(tmp_path / "taken.yaml", LENIENT), endpoint, tmp_path)
    other = _write(tmp_path / "other.yaml", LENIENT, off=off, count=count)
    with pytest.raises(NotComparableError, match=rf"cases is '{count} .*' here and '{COUNT} "):
        _run(other, endpoint, tmp_path / "out", refs)


def test_fewer_cases_are_judged_by_the_scores_of_the_same_ones(tmp_path, endpoint):
    refs = _register(_write(tmp_path / "taken.yaml", LENIENT), endpoint, tmp_path)
    fewer = _write(tmp_path / "fewer.yaml", LENIENT, count=COUNT - 2)
    [task] = _run(fewer, endpoint, tmp_path / "out", refs).tasks
    assert task.verdict.outcome is VerdictOutcome.PASS
    assert task.verdict.paired is not None


@pytest.mark.parametrize("scorer", ["numeric", LENIENT, NESTED])
def test_a_reference_of_today_still_judges_the_cases_that_it_was_taken_with(
    tmp_path, endpoint, scorer
):
    file = _write(tmp_path / "c.yaml", scorer)
    refs = _register(file, endpoint, tmp_path)
    _make_older(refs)
    report = _run(file, endpoint, tmp_path / "out", refs)
    assert report.tasks[0].verdict.outcome is VerdictOutcome.PASS
    assert judge_again(read_plan(tmp_path / "out"), tmp_path / "out").exit_code == 0


def test_a_stored_run_of_today_is_read_judged_and_scored_again(tmp_path, endpoint):
    file = _write(tmp_path / "c.yaml", LENIENT)
    refs = _register(file, endpoint, tmp_path)
    _run(file, endpoint, tmp_path / "out", refs)
    stored = tmp_path / "out" / "plan.json"
    content = json.loads(stored.read_text())
    assert content["fingerprints"]["cases:sums"].pop("scorer_options")
    stored.write_text(json.dumps(content))
    again = serve_eval("judge", tmp_path / "out")
    assert again.returncode == 0, again.stderr
    [found] = rescore(tmp_path / "out")
    assert (found.changed, found.notes) == ([], [])


def test_a_rescored_run_is_not_judged_by_the_reference_of_the_old_scorer(tmp_path, endpoint):
    file = _write(tmp_path / "c.yaml", "numeric")
    refs = _register(file, endpoint, tmp_path)
    _run(file, endpoint, tmp_path / "out", refs)
    setting = "cases:sums.scorer={numeric: {absolute: 10}}"
    done = serve_eval(
        "judge", "--rescore", tmp_path / "out", "--set", setting, "-o", tmp_path / "re"
    )
    assert done.returncode == 0, done.stderr
    for more in ([], ["--verdict", "classic"]):
        judged = serve_eval("judge", tmp_path / "re", *more)
        assert judged.returncode == 3, judged.stdout
        assert "scorer_options is {'numeric': {'absolute': 10}} here" in judged.stdout
        assert "PASS" not in judged.stdout


def test_a_rescored_run_is_judged_by_references_of_its_scorer(tmp_path, endpoint):
    lenient = _register(_write(tmp_path / "lenient.yaml", LENIENT), endpoint, tmp_path)
    _run(_write(tmp_path / "c.yaml", "numeric"), endpoint, tmp_path / "out", None)
    command = [
        "judge",
        "--rescore",
        tmp_path / "out",
        "--set",
        "cases:sums.scorer={numeric: {absolute: 10}}",
    ]
    done = serve_eval(*command, "-o", tmp_path / "re", "--references-dir", lenient)
    assert done.returncode == 0, done.stderr
    [task] = json.loads((tmp_path / "re/report.json").read_text())["tasks"]
    assert (task["verdict"]["outcome"], task["verdict"]["paired"]["pairs"]) == ("PASS", COUNT)
    alone = serve_eval(*command, "--references-dir", lenient)
    assert (alone.returncode, "Give -o NEW too" in alone.stderr) == (2, True)


def test_a_rule_without_pairs_names_the_cause(tmp_path, endpoint):
    refs = _register(_write(tmp_path / "c.yaml", "numeric"), endpoint, tmp_path)
    other = _write(tmp_path / "d.yaml", LENIENT)
    rule = {"verdict": "paired", "allow_mismatch": ["scorer_options"]}
    [task] = _run(other, endpoint, tmp_path / "out", refs, **rule).tasks
    [reason] = [one for one in task.verdict.reasons if one.startswith("no_pairs")]
    assert reason == "no_pairs: not paired with the reference: it lacks 6 of 6 prompts"


@pytest.mark.parametrize("rule", ["classic", "paired"])
def test_a_reference_of_another_scorer_says_why_it_has_no_pairs(tmp_path, endpoint, rule):
    refs = _register(_write(tmp_path / "c.yaml", "numeric"), endpoint, tmp_path)
    other = _write(tmp_path / "d.yaml", LENIENT)
    allowed = {"verdict": rule, "allow_mismatch": ["scorer_options"]}
    [task] = _run(other, endpoint, tmp_path / "out", refs, **allowed).tasks
    told = [*task.verdict.reasons, *task.verdict.warnings]
    [why] = [one for one in told if "scorer_options is {'numeric': {'absolute': 10}} here" in one]
    assert why.startswith("not paired with the reference: ")


def test_a_table_of_a_run_and_its_rescored_copy_names_the_scorer(tmp_path, endpoint):
    _run(_write(tmp_path / "c.yaml", "numeric"), endpoint, tmp_path / "out", None)
    setting = "cases:sums.scorer={numeric: {absolute: 10}}"
    serve_eval("judge", "--rescore", tmp_path / "out", "--set", setting, "-o", tmp_path / "re")
    done = serve_eval("runs", "export", tmp_path / "out", tmp_path / "re", "--format", "table")
    told = " ".join((done.stdout + done.stderr).split())
    assert "scorer_options differ" in told, told
    assert "samples" not in told.partition("cannot be compared")[2]


def test_cases_with_options_of_their_own_are_named_by_their_checksum(tmp_path):
    def checked(strict, lenient):
        scorers = {strict: {"scorer": "numeric"}, lenient: {"scorer": LENIENT}}
        content = [
            {"case": name, "input": {"prompt": name}, "expected": 1, **scorers[name]}
            for name in ("a", "b")
        ]
        file = tmp_path / "c.yaml"
        file.write_text(json.dumps({"sums": {"cases": content}}))
        task = cases.task("sums", path=str(file))
        return task.protocol["scorer_options"], task.reference_fields["cases"]

    one, other = checked("a", "b"), checked("b", "a")
    assert one[0] == other[0] == {"numeric": [{}, {"absolute": 10}]}
    assert one[1] != other[1]


def test_an_option_of_its_default_value_is_none(tmp_path, endpoint):
    refs = _register(_write(tmp_path / "c.yaml", "numeric"), endpoint, tmp_path)
    same = _write(tmp_path / "d.yaml", {"numeric": {"absolute": 0, "take": "last"}})
    [one] = prepare(_plan(same, endpoint, refs))
    assert "scorer_options" not in one.task.protocol
    assert one.reference is not None


SCORERS = {
    "choice": ("choice", "B", {"choice": 2}),
    "yes_no": ("yes_no", "no", {"yes_no": 2}),
    "numeric": ("numeric", 4, {"numeric": 2}),
    "code": ("code", "assert total == 4", {"code": 3}),
    "exact": ("exact", "4", {"exact": 2}),
    "as BioChatter": ({"exact": {"as_biochatter": True}}, "b", {"exact": 1}),
    "set": ("set", ["a", "b"], {"set": 2}),
    "any_of": (
        {"any_of": {"scorer": {"any_of": {"scorer": "numeric"}}}},
        [[3, 4]],
        {"any_of": 1, "any_of/any_of": 1, "any_of/any_of/numeric": 2},
    ),
}


def _write_scorer_versions(file, scorer, expected):
    case = {"case": "n", "input": {"prompt": "Question: what is 4?"}, "expected": expected}
    file.write_text(json.dumps({"sums": {"scorer": scorer, "cases": [case]}}))
    return file


@pytest.mark.parametrize("name", SCORERS)
def test_the_versions_of_scorers_are_part_of_the_fingerprint(tmp_path, name):
    scorer, expected, versions = SCORERS[name]
    task = cases.task(
        "sums", path=str(_write_scorer_versions(tmp_path / "c.yaml", scorer, expected))
    )
    fields = fingerprint(task, task.load(DataRoots(roots=()), 1))
    assert json.loads(fields["scorers"]) == versions
    older = {**fields, "scorers": json.dumps({one: v - 1 for one, v in versions.items()})}
    assert protocol_differences(fields, older) == ["scorers"]


def _run_scorer_versions(file, endpoint, out, **more):
    settings = {"cases": [str(file)], "base_url": endpoint.url, "model": "m", **more}
    return asyncio.run(evaluate(resolve.resolve({}, settings, {}).plan, out, environ={}))


@pytest.mark.parametrize("scorer", ["numeric", {"any_of": {"scorer": "numeric"}}])
def test_a_reference_of_an_older_version_is_refused_unless_it_is_allowed(
    tmp_path, endpoint, scorer
):
    expected = 4 if scorer == "numeric" else [4]
    file = _write_scorer_versions(tmp_path / "c.yaml", scorer, expected)
    _run_scorer_versions(file, endpoint, tmp_path / "first", no_reference=True)
    register([tmp_path / "first"], tmp_path / "refs")
    refs = {"references_dir": str(tmp_path / "refs")}
    assert (
        _run_scorer_versions(file, endpoint, tmp_path / "same", **refs).tasks[0].verdict.outcome
        == "PASS"
    )
    [reference] = (tmp_path / "refs").glob("*.yaml")
    text = reference.read_text()
    assert "numeric: 2" in text
    reference.write_text(text.replace("numeric: 2", "numeric: 1"))
    with pytest.raises(ServeEvalError, match=r"protocol differs.*scorers is .*numeric.*2.*1"):
        _run_scorer_versions(file, endpoint, tmp_path / "other", **refs)
    allowed = _run_scorer_versions(
        file, endpoint, tmp_path / "wish", allow_mismatch=["scorers"], **refs
    )
    assert allowed.tasks[0].verdict.outcome == "PASS"
