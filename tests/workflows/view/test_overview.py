"""No failure of a night disappears, whatever ran after it, and only like runs are one series."""

import io
import json
import re
import shutil
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from xml.etree import ElementTree

import msgspec
import pytest
from rich.console import Console

from serve_eval.report.document import make_page, print_document
from serve_eval.report.page.content import DataTable, TextLines
from serve_eval.schema import Spec, VerdictOutcome
from serve_eval.series.history import find_series
from serve_eval.series.read_runs import read_runs
from serve_eval.storage.report_file import read_report, write_report
from serve_eval.workflows.view.document import make_document
from serve_eval.workflows.view.overview import read_folder
from tests.cli.command import serve_eval
from tests.json_files import read_json

pytestmark = pytest.mark.usefixtures("simulated_here")

T0 = datetime(2026, 11, 1, 2, tzinfo=UTC)
PASS, FAIL = VerdictOutcome.PASS, VerdictOutcome.FAIL
NO_REFERENCE, INCONCLUSIVE = VerdictOutcome.NO_REFERENCE, VerdictOutcome.INCONCLUSIVE
FLAGS = "--launcher simulated -m org/m --tasks word_problems --limit 20"


@pytest.fixture(scope="module", autouse=True)
def _without_pictures():
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("SERVE_EVAL_NO_PICTURES", "1")
        yield


@pytest.fixture(scope="module")
def template(tmp_path_factory):
    run = tmp_path_factory.mktemp("template") / "run"
    serve_eval(f"run --no-reference -o {run} {FLAGS}")
    return run


@pytest.fixture
def write(template, tmp_path):
    """Return a function that writes a run with an outcome, `hours` after the first night."""

    def written(
        name,
        outcome,
        hours,
        *,
        model="org/m",
        launcher=None,
        address="http://h:1/v1",
        value=80.0,
        reference=None,
        version=None,
    ):
        run = tmp_path / "outputs" / name
        shutil.copytree(template, run)
        began = (T0 + timedelta(hours=hours)).isoformat()
        sessions = run / "environment.json"
        text = re.sub(r'"started_at": "[^"]*"', f'"started_at": "{began}"', sessions.read_text())
        sessions.write_text(text)
        report = read_report(run)
        [task] = report.tasks
        judged = replace(
            task,
            result=replace(task.result, value=value, planned=1000),
            verdict=replace(task.verdict, outcome=outcome, evaluated=value, reference=reference),
        )
        plan = replace(report.plan, model=model, launcher=launcher or Spec(name="trtllm"))
        info = msgspec.structs.replace(report.endpoint.info, version=version)
        endpoint = replace(report.endpoint, base_url=address, info=info)
        write_report(run, replace(report, plan=plan, endpoint=endpoint, tasks=(judged,)))
        return run

    return written


def _mark(folder, file, **content):
    folder.mkdir(parents=True, exist_ok=True)
    (folder / file).write_text(json.dumps(content))


def _result(folder, file, hours, code, **content):
    began = (T0 + timedelta(hours=hours)).isoformat()
    _mark(folder, file, started_at=began, exit_code=code, **content)


def _view(folder):
    return make_document(read_folder(folder))


def _rows(document):
    """Return outcomes, names and causes of what has a result."""
    shown = [one for one in document.conclusions if one.outcome != "KILLED"]
    return [(one.outcome, one.name, one.cause) for one in shown]


def _map(document):
    """Return the marks of the map by series, oldest first."""
    first = next(iter(document.make_page_blocks()))
    assert isinstance(first, DataTable)
    return {row[0].text: [cell.text for cell in row[1:]] for row in first.rows}


def test_sides_and_runs_of_references_do_not_hide_a_failure(write, tmp_path):
    outputs = tmp_path / "outputs"
    write("night_1", PASS, 0)
    write("night_2", FAIL, 24)
    write("other_1", FAIL, 24.5, model="org/other")
    write("other_2", NO_REFERENCE, 25, model="org/other")
    _mark(outputs / "other_3", "plan.json")
    for hours, name in ((26, "cmp/a"), (26, "cmp/b"), (27, "again/again_b"), (28, "refs/run_1")):
        write(name, NO_REFERENCE, hours)
    for folder, marker in (("cmp", "compare"), ("again", "compare"), ("refs", "references")):
        _mark(outputs / folder, f"{marker}.json")
    document = _view(outputs)
    assert document.verdict == "FAIL"
    assert "2 series: 2 failed; 3 ended without a result; no drift alarm" in document.counted
    assert _rows(document) == [
        (
            "FAIL",
            "word_problems of org/m",
            "fails since 2026-11-02 02:00; passed last on 2026-11-01 02:00",
        ),
        (
            "FAIL",
            "word_problems of org/other",
            "fails since 2026-11-02 02:30; not passed since (NO REFERENCE on 2026-11-02 03:00);"
            " no run before passed",
        ),
    ]
    marks = _map(document)
    assert [mark for mark in marks["word_problems of org/m"] if mark] == ["✓", "✗"]
    # The failure is the worst of the night in which the other run came.
    assert [mark for mark in marks["word_problems of org/other"] if mark] == ["✗"]
    _, notes = read_runs(outputs)
    assert any("unfinished: 1" in note for note in notes)
    history = find_series(outputs)
    assert [[night.run.name for night in one.nights] for one in history.series] == [
        ["night_1", "night_2"],
        ["other_1", "other_2"],
    ]
    parts = "left out, because they are parts of results of serve-eval"
    assert f"{parts} compare: 3 runs" in history.notes
    assert f"{parts} references take: 1 runs" in history.notes


@pytest.mark.parametrize("after", [INCONCLUSIVE, NO_REFERENCE, VerdictOutcome.UNSUPPORTED])
def test_an_undecided_run_hides_no_failure_however_old(after, write, tmp_path):
    write("1", FAIL, 0)
    for day in range(1, 9):
        write(f"1{day}", after, 24 * day)
    document = _view(tmp_path / "outputs")
    assert (document.verdict, "1 series: 1 failed; no drift" in document.counted) == ("FAIL", True)
    [(outcome, _, cause)] = _rows(document)
    assert outcome == "FAIL"
    assert f"fails since 2026-11-01 02:00; not passed since ({after.value} on 2026-11-09" in cause


def test_failures_of_many_nights_are_counted(write, tmp_path):
    for day in range(5):
        write(f"{day}", FAIL, 24 * day)
    document = _view(tmp_path / "outputs")
    cause = "fails since 2026-11-01 02:00, 5 times; no run before passed"
    assert _rows(document) == [("FAIL", "word_problems of org/m", cause)]
    assert [cell.text for cell in document.overview.rows[0]] == [
        "FAIL", "word_problems of org/m", "FFFFF", "80.0 (69.9 to 97.2)", "11-01",
    ]  # fmt: skip


def test_a_failure_of_last_night_is_told_after_a_pass_and_an_old_one_is_not(write, tmp_path):
    write("1", FAIL, 0)
    write("2", PASS, 24)
    write("3", FAIL, 48)
    write("4", FAIL, 49)
    write("5", PASS, 56)
    outputs = tmp_path / "outputs"
    cause = (
        "failed 2 times from 2026-11-03 02:00 to 2026-11-03 03:00; passed again on 2026-11-03 10:00"
    )
    assert _rows(_view(outputs)) == [("FAIL", "word_problems of org/m", cause)]
    assert _map(_view(outputs)) == {"word_problems of org/m": ["✗", "✓", "✗"]}
    _mark(outputs / "killed", "plan.json")  # today, and no result
    assert ("FAIL", "word_problems of org/m", cause) in _rows(_view(outputs))
    write("6", PASS, 48 + 72)
    assert _rows(_view(outputs)) == [("PASS", "word_problems of org/m", "")]


def test_since_when_and_by_how_much_stand_on_the_first_screen_and_on_the_page(write, tmp_path):
    for day in range(4):
        write(f"n{day}", FAIL if day > 1 else PASS, 24 * day, reference=90.0)
    done = serve_eval(f"runs view {tmp_path}/outputs -o {tmp_path}/v.html", COLUMNS="80")
    since = "10.0 below reference 90.0; fails since 2026-11-03 02:00, 2 times; passed last on"
    assert since in " ".join(done.stdout.split())
    assert "PPFF" in done.stdout
    text = (tmp_path / "v.html").read_text()
    assert since in text
    assert 'href="outputs/n3/report.html" title="2026-11-04 02:00 FAIL 80.0' in text


def test_a_version_that_changed_with_the_first_failure_is_named(write, tmp_path):
    for night, (outcome, version) in enumerate(
        ((PASS, "1.0"), (PASS, "1.1"), (FAIL, "1.2"), (FAIL, "1.3"))
    ):
        write(f"{night}", outcome, 24 * night, version=version)
    [(_, _, cause)] = _rows(_view(tmp_path / "outputs"))
    assert cause.endswith("; the endpoint's version was 1.1 before, and 1.2 then")


def test_all_outcomes_are_printed_as_json_and_each_series_is_a_case(write, tmp_path):
    write("1", PASS, 0)
    write("2", FAIL, 24)
    write("3", INCONCLUSIVE, 48)
    write("4", NO_REFERENCE, 48, model="org/other")
    done = serve_eval(f"runs view {tmp_path}/outputs --json --junit {tmp_path}/j.xml", exits=0)
    form = json.loads(done.stdout)
    assert (form["story"], form["outcome"]) == ("view", "FAIL")
    first, second = form["result"]["series"]
    assert [one["outcome"] for one in first["endings"]] == ["PASS", "FAIL", "INCONCLUSIVE"]
    assert (first["outcome"], first["since"][:10]) == ("FAIL", "2026-11-02")
    assert (second["outcome"], second["since"][:10]) == ("NO REFERENCE", "2026-11-03")
    cases = ElementTree.parse(tmp_path / "j.xml").getroot().iter("testcase")
    told = {case.get("name"): [child.tag for child in case][:1] for case in cases}
    assert told == {
        "word_problems of org/m": ["failure"],
        "word_problems of org/other": ["skipped"],
    }


@pytest.mark.parametrize(
    ("name", "command", "content", "words"),
    [
        (
            "comparison.json",
            "compare",
            {"a": {"model": "m"}, "b": {"model": "n"}, "tasks": [{"task": "gsm8k"}]},
            "compare: gsm8k of n against m",
        ),
        ("load.json", "load", {"model": "m", "tasks": [{"task": "t"}]}, "load: t of m"),
        ("tools.json", "tools", {"model": "m"}, "tools: m"),
        ("verification.json", "verify", {"sides": [{"name": "new"}]}, "verify: new"),
        ("suite_report.json", "suite", {"name": "nightly"}, "suite: nightly"),
        ("load_comparison.json", "compare", {"tasks": [{"task": "t"}]}, "compare: t"),
        ("invariants.json", "invariants", {"tasks": []}, "invariants"),
    ],
)
def test_failures_of_comparisons_and_checks_are_told(
    name, command, content, words, write, tmp_path
):
    outputs = tmp_path / "outputs"
    write("night", PASS, 0)
    _result(outputs / "check_1", name, 1, 1, **content)
    _result(outputs / "check_2", name, 2, 3, **content)
    document = _view(outputs)
    assert "2 series and checks: 1 failed, 1 passed; no drift alarm" in document.counted
    outcome, named, cause = _rows(document)[0]
    assert (outcome, named) == ("FAIL", words)
    assert cause.startswith(
        "fails since 2026-11-01 03:00; not passed since (INCONCLUSIVE on 2026-11-01 04:00)"
    )
    told = serve_eval(f"runs view {outputs} -o {tmp_path}/view.html")
    assert f"{words}: {cause}" in told.stdout
    _result(outputs / "check_3", name, 90, 0, **content)
    assert _view(outputs).verdict == "PASS"


def test_a_sound_verification_at_other_ports_answers_a_failed_one(tmp_path):
    def verified(night, hours, code, port, **more):
        content = {"model": "org/m", "reference": f"127.0.0.1:{port}", **more}
        sides = [
            {"name": f"http://127.0.0.1:{port + 1}"},
            {"name": "decode_1", "part_of": "127.0.0.1:1"},
        ]
        sides = sides if code else sides[:1]
        _result(tmp_path / night, "verification.json", hours, code, sides=sides, **content)

    verified("1", 0, 1, 40001)
    verified("2", 72, 0, 41007)
    assert "1 series and checks: 1 passed; no drift alarm" in _view(tmp_path).counted
    verified("3", 73, 1, 40001, model="org/other")
    verified("4", 74, 1, 40001, reference="refs/good.json")
    assert [one.name for one in _view(tmp_path).conclusions] == [
        "verify: 1 server of org/m against good.json",
        "verify: 1 server of org/other against a server",
        "verify: 1 server of org/m against a server",
    ]


def test_a_folder_of_checks_alone_is_shown_and_damaged_results_are_said(tmp_path):
    _result(tmp_path / "a", "load.json", 0, 1, model="m")
    _mark(tmp_path / "b", "load.json", exit_code=1)
    (tmp_path / "c").mkdir()
    (tmp_path / "c/tools.json").write_text("{")
    document = _view(tmp_path)
    assert "1 series and checks: 1 failed; no drift alarm" in document.counted
    [notes] = [one for one in make_page(document).sections if isinstance(one, TextLines)]
    assert [line for line in notes.lines if "cannot be read" in line and "load.json" in line]
    assert [line for line in notes.lines if "cannot be read" in line and "tools.json" in line]


def test_a_side_says_that_it_is_one_wherever_it_is_copied(tmp_path):
    folder = tmp_path / "cmp"
    plan = tmp_path / "plan.yaml"
    plan.write_text("model: org/m\nlauncher: simulated\ntasks: [word_problems]\nlimit: 20\n")
    done = serve_eval(f"compare {plan} {plan} -o {folder}")
    assert done.returncode in (0, 3), done.stderr
    shutil.copytree(folder / "b", tmp_path / "elsewhere/b")
    [moved], _ = read_runs(tmp_path / "elsewhere")
    assert moved.part_of == "compare"


def test_warnings_are_folded_and_counted(write, tmp_path):
    for i in range(6):
        write(f"night_{i}", PASS, 24 * i, address=f"http://h:{i}/v1")
    page = make_page(_view(tmp_path / "outputs"))
    assert isinstance(page.sections[0], DataTable)
    assert page.sections[0].title == "Verdicts of the last 6 nights"
    lines = [one for one in page.sections if isinstance(one, TextLines)]
    assert all(one.closed for one in lines)
    [warnings] = [one for one in lines if "warning" in one.title]
    number = len(warnings.lines)
    assert warnings.title == f"{number} warning{'s' if number > 1 else ''}"
    assert any("6 addresses" in line for line in warnings.lines)


def _nights(folder):
    return [[night.run.name for night in one.nights] for one in find_series(folder).series]


def test_deployments_side_by_side_are_series_of_their_own(write, tmp_path):
    external = Spec(name="external", options={"base_url": "http://h/v1"})
    for i in range(3):
        for side in ("old", "new"):
            write(
                f"{side}{i}",
                PASS,
                24 * i + (side == "new"),
                launcher=external,
                address=f"http://{side}:8000/v1",
                value=80.0 if side == "old" else 40.0,
            )
    assert sorted(_nights(tmp_path / "outputs")) == [
        ["new0", "new1", "new2"],
        ["old0", "old1", "old2"],
    ]
    names = [one.name for one in _view(tmp_path / "outputs").conclusions]
    assert any("http://old:8000/v1" in name for name in names)


def test_an_endpoint_that_moves_stays_one_series(write, tmp_path):
    external = Spec(name="external", options={"base_url": "http://h/v1"})
    for i in range(4):
        write(f"n{i}", PASS, 24 * i, launcher=external, address=f"http://h:{i // 2}/v1")
    assert _nights(tmp_path / "outputs") == [["n0", "n1", "n2", "n3"]]


def test_options_that_make_a_deployment_separate_and_others_do_not(write, tmp_path):
    for i, (tp, port) in enumerate(((4, 1), (8, 2), (4, 3))):
        options = {"tp": tp, "port": port, "ready_timeout_s": 10.0 + i, "env": {"N": str(i)}}
        write(f"n{i}", PASS, 24 * i, launcher=Spec(name="trtllm", options=options))
    assert sorted(_nights(tmp_path / "outputs")) == [["n0", "n2"], ["n1"]]
    notes = find_series(tmp_path / "outputs").notes
    assert any("their deployments differ: trtllm tp=4; trtllm tp=8" in note for note in notes)


def test_what_is_printed_fits_80_columns_and_begins_with_what_failed(write, tmp_path):
    write("1", FAIL, 0, model="organisation/some-long-name-of-a-model-70B-Instruct-FP8")
    write("2", NO_REFERENCE, 1, model="organisation/some-long-name-of-a-model-70B-Instruct-FP8")
    console = Console(file=io.StringIO(), width=80, force_terminal=True, color_system=None)
    print_document(_view(tmp_path / "outputs"), console)
    assert isinstance(console.file, io.StringIO)
    lines = console.file.getvalue().splitlines()
    assert lines[0].startswith(" FAIL   2026-11-01: 1 series: 1 failed; no drift")
    assert lines[2].split()[0] == "FAIL"
    assert max(len(line) for line in lines if "serve-eval " not in line) <= 80


def test_series_of_other_sampling_seeds_are_named_by_them(write, tmp_path):
    for seed in ("7", "8"):
        file = write(f"seed{seed}", PASS, float(seed)) / "report.json"
        content = read_json(file)
        content["tasks"][0]["fingerprint"]["seed"] = seed
        file.write_text(json.dumps(content))
    names = [one.name for one in _view(tmp_path / "outputs").conclusions]
    assert names == ["word_problems of org/m, seed 7", "word_problems of org/m, seed 8"]
