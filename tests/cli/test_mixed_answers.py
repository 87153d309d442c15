"""Test runs on servers that were replaced on the way, and old answers that are used again."""

import csv
import io
import json
import re
import shutil
import subprocess
import sys
import time
import zipfile
from dataclasses import replace
from itertools import count

import pytest

from serve_eval.datasets.source import GPQA_PASSWORD
from serve_eval.evaluation.evaluate import judge_again
from serve_eval.schema import DataRoots
from serve_eval.schema.media import uniform
from serve_eval.storage.answer_origins import ConnectionStep, Proofs
from serve_eval.storage.file_names import PROOFS_FILE
from serve_eval.storage.journal import read, withdrawals
from serve_eval.storage.run_folder import read_plan
from serve_eval.tasks.word_problems import task
from tests.cli.command import environment, serve_eval
from tests.client.kept import Doubling, doubling
from tests.json_files import read_json
from tests.scripted_server import ScriptedServer, answer, fail, models

TWICE = Doubling(every=40, delay_s=(0.001, 0.02), slow_s=0.002)


def _texts(count):
    """Return the answer to each prompt; four of five are right, always the same ones."""
    made = task()
    samples = made.load(DataRoots(roots=()), count).samples
    return {str(s.prompt): made.answers(s)[uniform(s.id) >= 0.8] for s in samples}


def _flags(server, count, out, *more):
    flags = [
        "run",
        "--base-url",
        server.base_url,
        "--model",
        "m",
        "--tasks",
        "word_problems",
        "--no-reference",
    ]
    return [*flags, "--set", f"word_problems.num_samples={count}", "-o", str(out), *more]


def _result(out):
    return read_json(out / "report.json")


def _same(out, sound, texts, count):
    """Check that each sample has its own answer and all results match those of a sound server."""
    asked = {s.id: texts[str(s.prompt)] for s in task().load(DataRoots(roots=()), count).samples}
    records = read(out / "samples/word_problems.jsonl")
    assert {r.id: r.response.text for r in records if r.response is not None} == asked
    for report in (out, sound):
        assert _result(report)["tasks"][0]["result"]["scored"] == count
    assert _result(out)["tasks"][0]["result"] == _result(sound)["tasks"][0]["result"]
    lines = [
        sorted((run / "scores/word_problems.jsonl").read_bytes().splitlines())
        for run in (out, sound)
    ]
    assert lines[0] == lines[1]


@pytest.mark.parametrize("count", [1000, pytest.param(5000, marks=pytest.mark.slow)])
def test_a_server_that_answers_twice_changes_no_number(count, tmp_path):
    texts = _texts(count)
    with doubling(Doubling(every=10**9), texts) as server:
        serve_eval(*_flags(server, count, tmp_path / "sound"), exits=3)
        assert server.asked.total() < count + 20
    with doubling(TWICE, texts) as server:
        done = serve_eval(*_flags(server, count, tmp_path / "twice"), exits=3)
    _same(tmp_path / "twice", tmp_path / "sound", texts, count)
    (warning,) = [
        line
        for line in _result(tmp_path / "twice")["warnings"]
        if "no request had asked for" in line
    ]
    assert "withdrawn and asked again" in warning
    assert "each request uses its own connection" in done.stderr


def test_a_run_that_is_killed_withdraws_what_is_not_proven_when_it_goes_on(tmp_path):
    count, out = 600, tmp_path / "out"
    texts = _texts(count)
    with doubling(Doubling(every=10**9), texts) as server:
        serve_eval(*_flags(server, count, tmp_path / "sound"), exits=3)
    journal = out / "samples/word_problems.jsonl"
    with doubling(Doubling(every=15, behind_next=True, slow_s=0.02), texts) as server:
        command = [
            sys.executable,
            "-m",
            "serve_eval",
            *_flags(server, count, out, "--concurrency", "24"),
        ]
        with subprocess.Popen(command, env=environment(), stderr=subprocess.DEVNULL) as process:
            deadline = time.monotonic() + 60
            while time.monotonic() < deadline and (
                not journal.exists() or journal.read_bytes().count(b"\n") < 100
            ):
                time.sleep(0.01)
            process.kill()
        before = journal.read_bytes().count(b"\n")
        assert 100 <= before < count
        serve_eval(*_flags(server, count, out, "--concurrency", "24"), exits=3)
    _same(out, tmp_path / "sound", texts, count)


def test_what_is_found_before_the_run_is_told_in_the_run(tmp_path):
    """The short requests before a run receive a copy too, each on its own connection."""
    texts = _texts(100)
    with doubling(Doubling(), texts) as server:
        done = serve_eval(*_flags(server, 100, tmp_path / "out"), exits=3)
    assert _result(tmp_path / "out")["tasks"][0]["result"]["scored"] == 100
    assert "each request uses its own connection" in done.stderr
    assert (
        len(
            [
                line
                for line in _result(tmp_path / "out")["warnings"]
                if "no request had asked for" in line
            ]
        )
        == 1
    )


def test_a_folder_judged_again_warns_as_its_run_did(tmp_path):
    texts, out = _texts(100), tmp_path / "out"
    with doubling(Doubling(every=20, delay_s=(0.001, 0.005), slow_s=0.002), texts) as server:
        serve_eval(*_flags(server, 100, out), exits=3)
    report = judge_again(read_plan(out), out)
    (warning,) = [line for line in report.warnings if "no request had asked for" in line]
    assert warning in _result(out)["warnings"]


def test_a_finished_run_with_evidence_asks_again_what_is_not_proven(tmp_path):
    """A connection whose end the server announces proves nothing.

    The evidence arrives later, as if a session on another machine had recorded it.
    """
    texts, out = _texts(60), tmp_path / "out"
    with doubling(Doubling(every=10**9, most=12), texts) as server:
        serve_eval(*_flags(server, 60, out, "--concurrency", "2"), exits=3)
        file = out / PROOFS_FILE
        asked, unproven = server.asked.total(), _result(out)["unproven_answers"]
        assert unproven > 0
        assert any("never proven" in line for line in _result(out)["warnings"])
        Proofs(file).note(ConnectionStep("a later session", 1, out="for the test"))
        serve_eval(*_flags(server, 60, out, "--concurrency", "2"), exits=3)
        assert server.asked.total() >= asked + unproven
        assert _result(out)["unproven_answers"] == 0
    assert _result(out)["tasks"][0]["result"]["scored"] == 60
    assert (
        len([line for line in _result(out)["warnings"] if "no request had asked for" in line]) == 1
    )


def _kill(command, journal, lines):
    """Run a command and kill it once the journal has this many lines."""
    with subprocess.Popen(command, env=environment(), stderr=subprocess.DEVNULL) as process:
        deadline = time.monotonic() + 60
        while time.monotonic() < deadline and (
            not journal.exists() or journal.read_bytes().count(b"\n") < lines
        ):
            time.sleep(0.005)
        process.kill()


@pytest.mark.parametrize("more", [[], ["--set", "limits.stream=true"]], ids=["whole", "stream"])
def test_a_killed_run_asks_again_what_nothing_proves_though_the_next_server_is_sound(
    more, tmp_path
):
    """No connection is found out of step: the kill comes before the first check."""
    count, out = 120, tmp_path / "out"
    texts, journal = _texts(count), out / "samples/word_problems.jsonl"
    with doubling(Doubling(every=10**9), texts) as server:
        serve_eval(*_flags(server, count, tmp_path / "sound"), exits=3)
    asked = {s.id: texts[str(s.prompt)] for s in task().load(DataRoots(roots=()), count).samples}
    shifted = replace(TWICE, every=3, delay_s=(0.0, 0.0), behind_next=True, slow_s=0.05)
    wrong = set()
    for _ in range(6):  # on a busy machine, a run may be killed before a wrong answer
        shutil.rmtree(out, ignore_errors=True)
        with doubling(shifted, texts) as server:
            flags = _flags(server, count, out, "--concurrency", "12", *more)
            _kill([sys.executable, "-m", "serve_eval", *flags], journal, 40)
        answers = [r for r in read(journal) if r.response is not None]
        wrong = {r.id for r in answers if r.response and r.response.text != asked[r.id]}
        if wrong:
            break
    assert wrong
    (out / PROOFS_FILE).unlink(missing_ok=True)  # as if it had seen nothing
    with doubling(Doubling(every=10**9), texts) as server:
        done = serve_eval(f"run --resume {out} --base-url {server.base_url}")
        assert max(server.asked[p] for p in texts) == 1
    assert done.returncode == 3, done.stderr
    _same(out, tmp_path / "sound", texts, count)
    assert wrong <= set(withdrawals(journal))
    assert _result(out)["unproven_answers"] == 0


def test_answers_that_nothing_proves_are_counted_and_told_if_they_are_not_asked_again(
    tmp_path,
):
    count, out = 60, tmp_path / "out"
    texts, journal = _texts(count), out / "samples/word_problems.jsonl"
    with doubling(Doubling(every=10**9, slow_s=0.05), texts) as server:
        flags = _flags(server, count, out, "--concurrency", "4")
        _kill([sys.executable, "-m", "serve_eval", *flags], journal, 16)
        turns = [r.response.attempts[-1].turn for r in read(journal) if r.response is not None]
        serve_eval(*flags, "--rerun", "never", exits=3)
    unproven = _result(out)["unproven_answers"]
    assert 0 < unproven <= sum(turn > 1 for turn in turns)
    lines = [line for line in _result(out)["warnings"] if "never proven" in line]
    assert len(lines) == 1
    assert lines[0].startswith(f"{unproven} answers were")
    assert judge_again(read_plan(out), out).unproven_answers == unproven


def test_a_sound_run_has_no_unproven_answers(tmp_path):
    texts, out = _texts(200), tmp_path / "out"
    with doubling(Doubling(every=10**9, slow_s=0.002), texts) as server:
        serve_eval(*_flags(server, 200, out, "--concurrency", "8"), exits=3)
        asked = server.asked.total()
        serve_eval(*_flags(server, 200, out, "--concurrency", "8"), exits=3)
        assert server.asked.total() == asked
    assert _result(out)["unproven_answers"] == 0
    assert judge_again(read_plan(out), out).unproven_answers == 0


QUESTIONS, STOPS_AT = 120, 80
CASES = "double:\n  scorer: numeric\n  cases:\n" + "".join(
    f"    - {{case: q{i}, input: {{prompt: 'Double item {i}.'}}, expected: {2 * i}}}\n"
    for i in range(1, QUESTIONS + 1)
)


class ReplacedServer:
    """Answers most items wrong and then fails, until a sound server takes its place."""

    def __init__(self, *, sound):
        self.sound = sound
        self._asked = count()

    def __call__(self, request):
        text = json.dumps(request.body)
        if "Double item " not in text:
            return answer("1", usage=(5, 1))
        item = int(text.partition("Double item ")[2].partition(".")[0])
        if not self.sound and next(self._asked) >= STOPS_AT:
            return fail(500)
        right = self.sound or item % 3 == 0
        return answer(str(2 * item if right else 2 * item + 1), usage=(5, 1))


def test_the_mixed_answers_are_the_cause_and_not_the_lost_attempts(tmp_path, monkeypatch):
    monkeypatch.setattr("serve_eval.client.attempts.outcome.BASE_S", 0.001)
    (tmp_path / "cases.yaml").write_text(CASES)
    one, other = ReplacedServer(sound=True), ReplacedServer(sound=False)
    routes = {"/v1/models": lambda request: models("m")}
    out = tmp_path / "c"
    with (
        ScriptedServer(one, routes=routes).serve_in_thread() as a,
        ScriptedServer(other, routes=routes).serve_in_thread() as b,
    ):
        asked = f"--cases {tmp_path}/cases.yaml --model m --concurrency 4"
        command = f"compare {a} {b} {asked} -o {out}"
        serve_eval(command, exits=4)
        other.sound = True
        done = serve_eval(f"{command} -v", exits=1)
    cause = "answers of two servers may be mixed: B was asked in 2 sessions"
    flat = " ".join(done.stdout.split())
    assert f"{cause} and disagrees with itself" in flat.partition("likely")[2]
    assert "lost an answer" not in flat.partition("likely")[2].partition("next")[0]
    assert cause in next(line for line in flat.split("unsteady: ")[1:])
    [told] = [
        line for line in (out / "junit.xml").read_text().splitlines() if 'name="likely"' in line
    ]
    assert cause in told
    diagnosis = serve_eval(f"diagnose {out}").stdout
    assert f" likely   mixed_servers: {cause}" in diagnosis


TIME = r"\d{4}-\d\d-\d\d \d\d:\d\d UTC"
SIDE = """\
model: model
launcher: {simulated: {accuracy: 1.0}}
tasks: [{word_problems: {num_samples: 40}}]
"""
RUN = "run --launcher simulated --tasks word_problems --limit 5"


def test_a_finished_run_says_that_nothing_was_asked(tmp_path):
    how = f"{RUN} --no-reference -o {tmp_path}/out"
    told = r"nothing was asked: .* at \d{4}-\d\d-\d\d \d\d:\d\d UTC; .*--rerun all"
    first, again = serve_eval(how), serve_eval(f"{how} -v")
    assert not re.search("nothing was asked", first.stdout)
    assert re.search(told, again.stdout)
    assert re.search(told, (tmp_path / "out/summary.md").read_text().replace("\\", ""))


def test_every_line_of_a_finished_run_says_that_nothing_was_asked(tmp_path):
    how = f"{RUN} --no-reference -o {tmp_path}/out"
    serve_eval(how)
    line = f"--notify-text - --junit {tmp_path}/j.xml -q"
    again = serve_eval(f"{how} {line}", GITHUB_ACTIONS="true")
    told = r"nothing was asked: the last answer came at \d{4}-\d\d-\d\d \d\d:\d\d UTC"
    *_, quiet, verdict, notify = again.stdout.splitlines()
    assert re.fullmatch(told, quiet), again.stdout
    assert "NO REFERENCE" in verdict
    assert re.match(f"{told}: NO REFERENCE word_problems ", notify), again.stdout
    assert re.search(f"skipped message=.{told}: NO REFERENCE", (tmp_path / "j.xml").read_text())
    notes = [one for one in again.stderr.splitlines() if one.startswith("::")]
    assert re.fullmatch(f"::warning title=serve-eval::{told}", notes[0]), again.stderr


@pytest.mark.slow
def test_a_run_that_asks_again_does_not_say_so(tmp_path):
    how = f"{RUN} --no-reference -o {tmp_path}/out"
    serve_eval(how)
    assert "nothing was asked" not in serve_eval(f"{how} --rerun all").stdout


def test_every_line_of_a_finished_comparison_says_so(tmp_path):
    for name in "ab":
        (tmp_path / f"{name}.yaml").write_text(SIDE)
    how = f"compare {tmp_path}/a.yaml {tmp_path}/b.yaml -o {tmp_path}/out"
    first = serve_eval(f"{how} --notify-text -")
    assert (first.returncode, "nothing was asked" in first.stdout) == (0, False), first
    again = serve_eval(f"{how} -v")
    assert re.search(f"nothing was asked: .* at {TIME}; to ask again, name", again.stdout)
    line = "--notify-text - -q"
    quiet = serve_eval(f"{how} {line}", GITHUB_ACTIONS="true")
    told = f"nothing was asked: the last answer came at {TIME}"
    start, *_, notify = quiet.stdout.splitlines()
    assert re.fullmatch(told, start), quiet.stdout
    assert re.match(f"{told}: PASS word_problems", notify), quiet.stdout
    assert re.search(f"{told}: PASS word_problems", (tmp_path / "out/junit.xml").read_text())
    assert re.match(f"{told}: PASS", (tmp_path / "out/summary.md").read_text().replace("\\", ""))
    assert re.match(f"::warning title=serve-eval::{told}", quiet.stderr), quiet.stderr


def test_every_line_of_a_finished_comparison_at_several_loads_says_so(tmp_path):
    for name in "ab":
        (tmp_path / f"{name}.yaml").write_text(SIDE)
    out = tmp_path / "out"
    how = f"compare {tmp_path}/a.yaml {tmp_path}/b.yaml -o {out}"
    first = serve_eval(f"{how} --concurrency 1,4")
    assert (first.returncode, "nothing was asked" in first.stdout) == (0, False), first
    again = serve_eval(f"{how} --concurrency 1,4 -v")
    assert re.search(f"warning +nothing was asked: .* at {TIME}; to ask again", again.stdout)
    told = f"nothing was asked: the last answer came at {TIME}"
    line = "--concurrency 1,4 --notify-text - -q"
    quiet = serve_eval(f"{how} {line}", GITHUB_ACTIONS="true")
    start, *_, notify = quiet.stdout.splitlines()
    assert re.fullmatch(told, start), quiet.stdout
    assert re.match(f"{told}: PASS word_problems", notify), quiet.stdout
    assert len(re.findall(f"{told}: PASS", (out / "junit.xml").read_text())) == 2
    assert re.match(f"{told}: PASS", (out / "summary.md").read_text().replace("\\", ""))
    assert re.match(f"::warning title=serve-eval::{told}", quiet.stderr), quiet.stderr
    grown = serve_eval(f"{how} --concurrency 1,2,4")
    said = rf"at (\d) in flight nothing was asked: the last answer came at {TIME}"
    assert re.findall(said, grown.stdout) == ["1", "4"], grown.stdout


def _write_suite(folder, *names):
    (folder / "side.yaml").write_text(f"{SIDE}no_reference: true\n")
    runs = ", ".join(f"{{name: {name}, plan: side.yaml}}" for name in names)
    (folder / "s.yaml").write_text(f"name: night\nplans: [{runs}]\n")
    return folder / "s.yaml"


def test_every_line_of_a_finished_suite_says_so(tmp_path):
    out = tmp_path / "out"
    how = ("run", _write_suite(tmp_path, "one", "two"), "-o", out, "--notify-text", "-")
    first = serve_eval(*how)
    assert "asked" not in first.stdout, first.stdout
    told = f"nothing was asked: the last answer came at {TIME}"
    assert re.search("older +these answers are earlier ones; to ask again", serve_eval(*how).stdout)
    quiet = serve_eval(*how, "-q", GITHUB_ACTIONS="true")
    start, *_, notify = quiet.stdout.splitlines()
    assert re.fullmatch(told, start), quiet.stdout
    assert re.match(f"{told}: NO REFERENCE one/word_problems", notify), quiet.stdout
    junit = (out / "junit.xml").read_text()
    assert len(re.findall(f"message=.{told}: NO REFERENCE", junit)) == 2, junit
    assert re.match(f"{told}: NO REF", (out / "summary.md").read_text().replace("\\", ""))
    assert re.match(f"::warning title=serve-eval::{told}", quiet.stderr), quiet.stderr


def test_a_suite_that_kept_some_runs_says_how_many(tmp_path):
    out = tmp_path / "out"
    serve_eval(f"run -o {out}", _write_suite(tmp_path, "one", "two"))
    how = ("run", _write_suite(tmp_path, "one", "two", "new"), "-o", out, "--notify-text", "-")
    grown = serve_eval(*how, "-q", GITHUB_ACTIONS="true")
    told = f"2 of 3 runs are older: last answer {TIME}"
    start, *_, notify = grown.stdout.splitlines()
    assert re.fullmatch(told, start), grown.stdout
    assert re.match(f"{told}: NO REFERENCE", notify), grown.stdout
    assert re.match(f"{told}: NO REF", (out / "summary.md").read_text().replace("\\", ""))
    junit = (out / "junit.xml").read_text()
    said = re.findall(r"classname=\"(\w+)\".*message=\"(nothing was asked|NO REFERENCE)", junit)
    assert said == [(name, "nothing was asked") for name in ("one", "two")] + [
        ("new", "NO REFERENCE")
    ]
    assert re.match(f"::warning title=serve-eval::{told}", grown.stderr), grown.stderr


NAME = "gpqa_diamond.csv"


def _write(file, rows):
    text = io.StringIO()
    table = csv.DictWriter(text, list(rows[0]))
    table.writeheader()
    table.writerows(rows)
    file.write_text(text.getvalue())


def _read_result(folder):
    return read_json(folder / "report.json")["tasks"][0]["result"]


def test_answers_are_scored_by_the_order_in_which_the_choices_were_asked(data_root, tmp_path):
    """Rows in another order would give each question other choices, and 25 % of random letters."""
    with zipfile.ZipFile(data_root / "gpqa/dataset.zip") as archive:
        text = archive.read(f"dataset/{NAME}", pwd=GPQA_PASSWORD).decode()
    rows = list(csv.DictReader(io.StringIO(text)))
    file, out = tmp_path / "gpqa" / NAME, tmp_path / "out"
    file.parent.mkdir()
    _write(file, rows)
    ran = serve_eval(
        "run --tasks gpqa --launcher simulated --set launcher.accuracy=0.9 --no-reference"
        f" --limit 20 --dataset-root {tmp_path} -o {out}"
    )
    assert ran.returncode == 3, ran.stderr  # no reference
    asked = [json.loads(line) for line in (out / "prompts/gpqa.jsonl").read_text().splitlines()]
    assert len(asked) == 20
    assert all("D) " in str(one) for one in asked)
    assert serve_eval(f"judge --rescore {out} -o {tmp_path}/again").returncode in (0, 3)
    assert _read_result(tmp_path / "again")["value"] == _read_result(out)["value"]

    _write(file, rows[::-1])
    rescored = serve_eval(f"judge --rescore {out} -o {tmp_path}/other")
    judged = serve_eval(f"judge {out} --verdict classic --set no_reference=true")
    assert rescored.returncode == 2
    assert "the data is not what" in rescored.stderr
    assert judged.returncode == 2
    assert "samples" in judged.stderr
