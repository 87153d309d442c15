"""Test judging a finished run again, by other thresholds, options or scores."""

import json
import shlex
import shutil
from pathlib import Path

import pytest
from junitparser import JUnitXml

from tests.cli.command import serve_eval
from tests.json_files import read_json

pytestmark = pytest.mark.usefixtures("simulated_here")


def _references(tmp_path, entry):
    folder = tmp_path / "references"
    folder.mkdir(exist_ok=True)
    (folder / "word_problems.yaml").write_text(f"simulated:\n  - {entry}\n")
    return folder


def _run(tmp_path, entry, n=100, out="out"):
    done = serve_eval(
        "run --launcher simulated --set launcher.accuracy=0.57 --set seed=1 -t word_problems"
        f" --set word_problems.num_samples={n} -o {tmp_path}/{out} --references-dir",
        _references(tmp_path, entry),
    )
    return done.returncode, done.stdout + done.stderr


@pytest.mark.parametrize("higher", ["true", "false"])
def test_a_run_on_the_threshold_passes_and_one_step_beyond_fails(tmp_path, higher):
    """Whatever the count of 100 is, its own decimal is a threshold that it passes."""
    _run(tmp_path, "{accuracy: 57, threshold: 1}")
    [task] = read_json(tmp_path / "out" / "report.json")["tasks"]
    right = task["result"]["outcomes"]["correct"]
    for threshold, code in ((right, 0), (right + (1 if higher == "true" else -1), 1)):
        entry = f"{{accuracy: 57, threshold: {threshold}, higher_is_better: {higher}}}"
        assert _run(tmp_path, entry, out=f"{threshold}")[0] == code


def test_where_lower_is_better_everything_says_that_a_value_above_fails(tmp_path):
    code, said = _run(tmp_path, "{accuracy: 20, higher_is_better: false}")
    assert code == 1
    assert "fails above" in said
    written = ["summary.md", "junit.xml", "report.html"]
    texts = {
        name: (tmp_path / "out" / name).read_text()
        for name in written
        if (tmp_path / "out" / name).exists()
    }
    assert "\\> 31.6" in texts["summary.md"]
    assert "fails above" in texts["report.html"]
    for text in (said, *texts.values()):
        assert "fails below" not in text
        assert "< 31.6" not in text
        assert "&lt; 31.6" not in text


@pytest.mark.parametrize(
    ("entry", "message"),
    [
        ("accuracy: 101", "accuracy must be 0 or more and 100 or less, not 101: correct"),
        ("accuracy: -1", "accuracy must be 0 or more and 100 or less, not -1: correct"),
        ("{accuracy: 57, threshold: 570}", "threshold must be 0 or more and 100 or less"),
    ],
)
def test_a_number_out_of_range_is_refused_before_a_request(tmp_path, entry, message):
    code, said = _run(tmp_path, entry)
    assert code == 2
    assert message in said
    assert "word_problems.yaml:2: simulated" in said
    assert not (tmp_path / "out").exists()


def test_a_threshold_that_nothing_fails_is_a_warning(tmp_path):
    code, said = _run(tmp_path, "{accuracy: 57}", n=4)
    assert code == 0
    assert "accuracy is 0 or more, so the task never fails: ask more samples" in said


ASKED = "--launcher simulated -m org/m -t word_problems --set=word_problems.num_samples=40"


def test_options_of_the_rule_are_tried_on_a_finished_run(tmp_path):
    refs = f"--references-dir {tmp_path}/refs"
    serve_eval(f"references take --runs 1 -o {tmp_path}/ref {ASKED} {refs}", exits=0)
    run = tmp_path / "run"
    serve_eval(f"run --set=launcher.damage=0.6 -o {run} {ASKED} {refs}", exits=1)
    before = (run / "report.json").read_bytes()
    found = {}
    for margin in ("10", "90"):
        done = serve_eval(
            f"judge {run} --verdict noninferiority --set verdict.margin={margin} --json {refs}"
        )
        [task] = json.loads(done.stdout)["result"]["tasks"]
        found[margin] = done.returncode, task["verdict"]["outcome"]
    assert found == {"10": (1, "FAIL"), "90": (0, "PASS")}
    assert (run / "report.json").read_bytes() == before
    alias = tmp_path / "alias"
    done = serve_eval(f"run {ASKED} -m org/alias --no-reference -o {alias}", exits=3)
    serve_eval(f"judge {alias} {refs}", exits=3)
    done = serve_eval(f"judge {alias} --set reference_model=org/m {refs}", exits=0)


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("word_problems.seed=1", "here it sets options of the rule, as in verdict.margin=2"),
        ("verdict.nothing=1", "verdict.nothing: unknown option"),
    ],
)
def test_another_option_is_a_wrong_use(text, told, tmp_path):
    run = tmp_path / "run"
    serve_eval(f"run --no-reference -o {run} {ASKED}", exits=3)
    serve_eval(f"judge {run} --set", text, exits=2, tells=told)


ODD = 7
"""Right answers without `####`, which strict-match cannot read: half a point by the mean of both
filters."""


@pytest.fixture(scope="module")
def finished(data_root, tmp_path_factory):
    """Return a finished run whose last right answers an older extractor could not read.

    The stored scores count them as wrong.
    """
    out = tmp_path_factory.mktemp("runs") / "out"
    flags = f"run --launcher simulated --tasks gsm8k,mmlu --dataset-root {data_root} --no-reference"
    limited = f"--limit 60 --set mmlu.num_samples=57 --set launcher.accuracy=0.8 -o {out}"
    serve_eval(f"{flags} {limited}", exits=3)
    journal = out / "samples/gsm8k.jsonl"
    records = [json.loads(line) for line in journal.read_text().splitlines()]
    right = [r for r in records if json.loads(_score(out, r["id"]))["value"] == 1.0]
    for record in right[:ODD]:
        record["response"]["text"] = record["response"]["text"].replace("#### ", "So it is ")
    journal.write_text("".join(f"{json.dumps(record)}\n" for record in records))
    return out


@pytest.fixture
def run(finished, tmp_path):
    return Path(shutil.copytree(finished, tmp_path / "out"))


def _score(out, sample):
    return next(
        line
        for line in (out / "scores/gsm8k.jsonl").read_text().splitlines()
        if f'"{sample}"' in line
    )


def _content(out):
    return {
        str(file.relative_to(out)): file.read_bytes() for file in out.rglob("*") if file.is_file()
    }


def _gsm8k(done):
    tasks = json.loads(done.stdout)["result"]["tasks"]
    return next(task for task in tasks if task["task"] == "gsm8k")


def test_what_another_extractor_makes_of_the_answers_is_said_and_nothing_written(run):
    before = _content(run)
    done = serve_eval(f"judge --rescore {run}", exits=0)
    assert _content(run) == before
    assert done.stdout.startswith(" CHANGED   2 tasks: 1 CHANGED, 1 UNCHANGED\n")
    assert f"gsm8k: {ODD} of 60 changed outcome: {ODD} correct -> partial\n" in done.stdout
    whole = serve_eval(f"judge --rescore {run} -v").stdout
    assert " samples  mmlu: none of 57 changed\n" in whole
    table = whole.partition(" Changed samples of gsm8k\n")[2].splitlines()
    assert sum(" -> " not in line and "correct 1" in line for line in table) == ODD
    told = _gsm8k(serve_eval(f"judge --rescore {run} --json"))
    assert len(told["changed"]) == ODD
    first = told["changed"][0]
    assert (
        json.loads(_score(run, first["id"]))["outcome"] == first["before"]["outcome"] == "correct"
    )
    assert first["after"]["value"] == 0.5
    assert first["after"]["answer"] in first["target"]
    assert told["before"] - told["after"] == pytest.approx(100 * ODD * 0.5 / 60)
    assert told["before"] == told["reported"]


def test_a_filter_is_an_option_of_scoring_alone(run):
    serve_eval(f"judge {run}", exits=3)  # now the stored scores match the answers
    same = _gsm8k(serve_eval(f"judge --rescore {run} --json"))
    assert (same["changed"], same["moves"]) == ([], [])
    assert "the stored scores are newer than the report" in same["notes"][0]
    strict = _gsm8k(serve_eval(f"judge --rescore {run} --set gsm8k.filter=strict-match --json"))
    assert strict["moves"] == [["partial", "unparsed", ODD]]
    assert strict["options"] == {"filter": ["mean", "strict-match"]}
    assert strict["after"] == strict["parts"]["strict-match"]
    flexible = _gsm8k(
        serve_eval(f"judge --rescore {run} --set gsm8k.filter=flexible-extract --json")
    )
    assert flexible["moves"] == [["partial", "correct", ODD]]


def test_the_new_folder_is_a_run_of_its_own(run, tmp_path):
    before, new = _content(run), tmp_path / "new"
    done = serve_eval(f"judge --rescore {run} --set gsm8k.filter=strict-match -o {new}")
    assert (done.returncode, _content(run)) == (0, before), done.stderr
    old_report, report = (read_json(folder / "report.json") for folder in (run, new))
    assert report["started_at"] == old_report["started_at"]
    assert report["tasks"][0]["fingerprint"]["filter"] == '"strict-match"'
    assert any("scored again" in warning for warning in report["warnings"])
    assert (new / "samples/gsm8k.jsonl").read_bytes() == (run / "samples/gsm8k.jsonl").read_bytes()
    assert {file.stat().st_mode & 0o077 for file in new.rglob("*") if file.is_file()} == {0}
    told = _gsm8k(serve_eval(f"judge --rescore {new} --json"))
    assert (told["changed"], told["after"]) == ([], report["tasks"][0]["result"]["value"])
    serve_eval(f"run --resume {new}", exits=3)  # no requests and no reference


@pytest.mark.parametrize(
    ("setting", "said"),
    [
        ("gsm8k.num_fewshot=3", "--set gsm8k.num_fewshot: decides what is asked"),
        ("gsm8k.max_tokens=7", "--set gsm8k.max_tokens: decides what is asked"),
        ("gsm8k.num_samples=10", "--set gsm8k.num_samples: decides what is asked"),
        ("gsm8k.random_seed=4", "--set gsm8k.random_seed: decides what is asked"),
        ("mmlu.system_prompt=Hm", "--set mmlu.system_prompt: decides what is asked"),
        ("gsm8k.filter=strict", "strict-match"),
        ("gsm8k.filtre=mean", "Did you mean 'filter'?"),
        ("launcher.seed=2", "serve-eval judge RUN"),
    ],
)
def test_what_was_asked_cannot_be_changed_afterwards(run, tmp_path, setting, said):
    flags = ["--set", "gsm8k.filter=strict-match"] if "filt" not in setting else []
    done = serve_eval(
        f"judge --rescore {run} -o {tmp_path}/new", *flags, "--set", setting, exits=2, tells=said
    )
    assert "gsm8k.filter:" not in done.stderr.replace("tasks[0].gsm8k.filter", "")
    assert not (tmp_path / "new").exists()


def test_a_run_that_was_killed_is_scored_as_far_as_it_came(run, tmp_path):
    (run / "report.json").unlink()
    journal, scores = run / "samples/gsm8k.jsonl", run / "scores/gsm8k.jsonl"
    journal.write_bytes(b"".join(journal.read_bytes().splitlines(keepends=True)[:40])[:-20])
    scores.write_bytes(b"".join(scores.read_bytes().splitlines(keepends=True)[:30])[:-20])
    before = _content(run)
    done = serve_eval(f"judge --rescore {run} --json -o {tmp_path}/new")
    assert (done.returncode, _content(run)) == (0, before), done.stderr
    told = _gsm8k(done)
    assert (told["answered"], told["planned"], told["reported"]) == (39, 60, None)
    assert sum(1 for changed in told["changed"] if changed["before"] is None) == 10
    assert "10 answers have no score on file" in told["notes"][0]
    assert not (tmp_path / "new/report.json").exists()
    serve_eval(f"run --resume {tmp_path}/new", exits=3)
    assert read_json(tmp_path / "new/report.json")["tasks"][0]["result"]["scored"] == 60


def test_a_run_without_an_answer_has_nothing_to_score(run):
    for file in (run / "samples").iterdir():
        file.unlink()
    done = serve_eval(f"judge --rescore {run} --junit {run}/junit.xml", exits=5)
    assert done.stdout.startswith(" NOT SCORED ")
    assert "0 of 60 samples have a score" in done.stdout
    cases = [case for suite in JUnitXml.fromfile(str(run / "junit.xml")) for case in suite]
    assert [(case.name, type(case.result[0]).__name__) for case in cases] == [
        ("gsm8k", "Error"),
        ("mmlu", "Error"),
    ]


def test_the_printed_commands_run_as_they_stand(run, monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)
    shown = json.loads(serve_eval(f"judge --rescore {run} --json").stdout)["commands"]
    assert [one.split()[1] for one in shown] == ["show", "judge"]
    for _ in range(2):  # The folder of the second command is another one than that of the first.
        [show, again] = json.loads(serve_eval(f"judge --rescore {run} --json").stdout)["commands"]
        serve_eval(*shlex.split(show)[1:], exits=0, prints="####")
        done = serve_eval(*shlex.split(again)[1:], "--json", exits=0)
        for command in json.loads(done.stdout)["commands"]:
            assert serve_eval(*shlex.split(command)[1:]).returncode in (0, 3), command
    assert len(list(tmp_path.glob("*_rescored/report.json"))) == 2


def test_a_killed_run_is_resumed_by_the_printed_command(run, tmp_path):
    (run / "report.json").unlink()
    journal = run / "samples/gsm8k.jsonl"
    journal.write_bytes(b"".join(journal.read_bytes().splitlines(keepends=True)[:40]))
    done = serve_eval(f"judge --rescore {run} -o {tmp_path}/new --json")
    resume = json.loads(done.stdout)["commands"][-1]
    assert resume == f"serve-eval run --resume {tmp_path / 'new'}"
    serve_eval(*shlex.split(resume)[1:], exits=3)


def test_the_new_verdict_stands_next_to_the_old_one(tmp_path):
    (tmp_path / "refs").mkdir()
    (tmp_path / "refs/word_problems.yaml").write_text("m: [{accuracy: 90, num_samples: 60}]\n")
    asked = "--launcher simulated -m m -t word_problems --limit 60"
    more = f"--references-dir {tmp_path}/refs -o {tmp_path}/out"
    serve_eval(f"run --set launcher.accuracy=0.9 {asked} {more}", exits=0)
    journal = tmp_path / "out/samples/word_problems.jsonl"
    records = [json.loads(line) for line in journal.read_text().splitlines()]
    for record in records[:30]:
        record["response"]["text"] = "nothing"
    journal.write_text("".join(f"{json.dumps(record)}\n" for record in records))
    line = tmp_path / "line"
    new = ("-o", tmp_path / "new", "--notify-text", line)
    serve_eval(
        f"judge --rescore {tmp_path}/out",
        *new,
        exits=0,
        prints=" verdict  FAIL against 90.000, PASS before\n",
    )
    assert "; FAIL against 90.000, PASS before; " in line.read_text()
    [told] = json.loads(serve_eval(f"judge --rescore {tmp_path}/new --json").stdout)["result"][
        "tasks"
    ]
    assert (told["verdict_before"], told["verdict_after"]) == ("FAIL", None)


@pytest.mark.parametrize("place", ["out/inside", "full", "nothing"])
def test_folders_that_do_not_fit_are_refused(run, tmp_path, place):
    (tmp_path / "full").mkdir()
    (tmp_path / "full/file").touch()
    before = _content(run)
    if place == "nothing":
        done = serve_eval(f"judge --rescore {tmp_path}/nothing")
    else:
        done = serve_eval(f"judge --rescore {run} -o {tmp_path}/{place}")
    said = {"out/inside": "is inside", "full": "not an empty folder", "nothing": "holds no run"}[
        place
    ]
    assert (done.returncode, said in done.stderr) == (2, True), done.stderr
    assert _content(run) == before


def test_other_data_and_damaged_files_are_told(run, tmp_path):
    plan = read_json(run / "plan.json")
    moved = {**plan, "plan": {**plan["plan"], "dataset_roots": [str(tmp_path / "data")]}}
    shutil.copytree(Path(plan["plan"]["dataset_roots"][0]), tmp_path / "data")
    rows = (tmp_path / "data/gsm8k/test.jsonl").read_text()
    (tmp_path / "data/gsm8k/test.jsonl").write_text(rows.replace("#### ", "#### 1"))
    (run / "plan.json").write_text(json.dumps(moved))
    serve_eval(f"judge --rescore {run}", exits=2, tells="the data is not what")
    (run / "plan.json").write_text(json.dumps(plan))
    (run / "scores/gsm8k.jsonl").write_text("{}\n")
    serve_eval(f"judge --rescore {run}", exits=2, tells="serve-eval judge")
    (run / "scores/gsm8k.jsonl").unlink()
    (run / "samples/gsm8k.jsonl").write_text("{\n")
    serve_eval(f"judge --rescore {run}", exits=2, tells="a damaged record")


def test_a_task_that_was_changed_since_the_run_is_told(run, tmp_path):
    plan = read_json(run / "plan.json")
    plan["fingerprints"]["gsm8k"]["version"] = "0"
    (run / "plan.json").write_text(json.dumps(plan))
    serve_eval(
        f"judge --rescore {run} -o {tmp_path}/new", exits=0, prints='version: was "0", now "1"'
    )
    plan["fingerprints"]["gsm8k"]["max_tokens"] = "100"
    (run / "plan.json").write_text(json.dumps(plan))
    assert 'max_tokens: was "100", now "256"' in serve_eval(f"judge --rescore {run}").stdout
    serve_eval(
        f"judge --rescore {run} -o {tmp_path}/other",
        exits=2,
        tells="claim requests that were never sent",
    )
    assert not (tmp_path / "other").exists()
