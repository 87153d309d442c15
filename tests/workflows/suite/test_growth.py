"""A suite grows by tasks and by values of its matrix; a run without an answer may change."""

import json
from pathlib import Path

import pytest

from tests.cli.command import serve_eval

pytestmark = pytest.mark.usefixtures("simulated_here")

WORDS = "{word_problems: {num_samples: 40}}"


@pytest.fixture(autouse=True)
def _here(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)


def _write(tasks, *runs):
    named = runs or ("a, launcher: {name: simulated, accuracy: 0.9}",)
    plans = "".join(f"  - {{name: {run}}}\n" for run in named)
    Path("s.yaml").write_text(
        f"defaults: {{model: org/m, no_reference: true, tasks: [{tasks}]}}\nplans:\n{plans}"
    )


def test_an_added_task_is_asked_and_the_answers_of_the_others_are_kept():
    _write(WORDS)
    serve_eval("run s.yaml -o out", exits=3)
    journal = Path("out/runs/a/samples/word_problems.jsonl")
    before = journal.read_bytes()
    _write(f"passkey_short, {WORDS}")  # at another place, too
    serve_eval("run s.yaml -o out --dry-run", exits=0, prints="nothing was sent")
    done = serve_eval(
        "run s.yaml -o out", exits=3, tells="a: new: passkey_short; the other answers are kept"
    )
    assert "word_problems: 40/40" not in done.stderr
    assert "1 row is new since the report of" in done.stdout
    assert "new: a/passkey_short" in done.stdout
    assert journal.read_bytes() == before
    table = serve_eval("runs export out --format csv").stdout.splitlines()
    assert len(table) == 2
    again = serve_eval("run s.yaml -o out")
    assert "1 of 1 runs are already finished" in again.stderr
    resumed = serve_eval("run --resume out")
    assert "1 of 1 runs are already finished" in resumed.stderr


def test_a_task_that_cannot_be_added_takes_no_result_from_the_others():
    _write(WORDS)
    serve_eval("run s.yaml -o out")
    _write(f"{WORDS}, gsm8k")
    done = serve_eval("run s.yaml -o out", exits=2, prints="the data set GSM8K was not found")
    assert "1 NO REFERENCE" in done.stdout.replace("1 ERROR, ", "")
    serve_eval("judge out", exits=2, prints="1 ERROR, 1 NO REFERENCE")
    _write(WORDS)
    serve_eval("run s.yaml -o out", exits=3, prints="1 task: 1 NO REFERENCE")


def test_what_is_refused_names_the_task_and_the_difference():
    _write(f"{WORDS}, passkey_short")
    serve_eval("run s.yaml -o out")
    for tasks, said in (
        ("{word_problems: {num_samples: 41}}, passkey_short", "num_samples: was 40, now 41"),
        ("passkey_short", 'a.tasks.word_problems: was {"num_samples":40}, now null'),
    ):
        _write(tasks)
        serve_eval("run s.yaml -o out", exits=2, tells=said)


def test_a_long_value_is_shown_where_it_differs():
    text = "Answer with a number. " * 8
    for end in ("one", "two"):
        _write(f"{{word_problems: {{num_samples: 40, system_prompt: '{text}{end}'}}}}")
        done = serve_eval("run s.yaml -o out")
    assert done.returncode == 2
    assert 'number. one", now ...' in done.stderr
    assert 'number. two"' in done.stderr


def test_a_value_that_is_added_to_a_matrix_keeps_the_names_of_the_finished_runs():
    head = "defaults: {model: org/m, no_reference: true, launcher: {name: simulated}}\nmatrix:\n"
    sizes = "  size: [{label: small, limits: {concurrency: 8}}]\n"
    Path("s.yaml").write_text(f"{head}{sizes}  tasks: [{WORDS}]\n")
    serve_eval("run s.yaml -o out", exits=3)
    [name] = [one.name for one in Path("out/runs").iterdir()]
    Path("s.yaml").write_text(f"{head}{sizes}  tasks: [{WORDS}, passkey_short]\n")
    serve_eval("run s.yaml -o out --dry-run", exits=0)
    done = serve_eval("run s.yaml -o out", exits=3, tells=f"keeps its earlier name {name}")
    assert "1 of 2 runs are already finished" in done.stderr
    assert len([*Path("out/runs").iterdir()]) == 2


def test_a_run_without_an_answer_may_change_or_go():
    dead = "launcher: {name: external, base_url: 'http://127.0.0.1:9/v1'}"
    sound = "a, launcher: {name: simulated}"
    lost = (
        "launcher: {name: simulated, failure_rate: 0.5, failure_kind: wrapped_400},"
        " limits: {max_error_rate: 1.0}"
    )
    _write(WORDS, sound, f"b, {dead}", f"c, {lost}", f"d, {lost}")
    serve_eval("run s.yaml -o out", exits=4)
    for name in ("c", "d"):  # as if it was killed before the first answer
        Path(f"out/runs/{name}/report.json").unlink()
        journal = Path(f"out/runs/{name}/samples/word_problems.jsonl")
        records = journal.read_text().splitlines(keepends=True)
        failures = [one for one in records if '"response":{' not in one]
        assert failures
        journal.write_text("".join(failures))
    now = "launcher: {name: simulated, accuracy: 0.9}"
    _write(WORDS, sound, f"b, {now}", f"c, {now}")
    serve_eval(
        "run s.yaml -o out",
        exits=3,
        prints="3 NO REFERENCE",
        tells="1 of 3 runs are already finished",
    )


LAUNCHED = "launcher: {name: simulated, accuracy: 0.9}"


def test_a_task_that_cannot_be_asked_stops_no_other_task_of_a_new_run():
    _write(f"{WORDS}, gsm8k", f"a, {LAUNCHED}", f"b, {LAUNCHED}")
    done = serve_eval("run s.yaml -o out", exits=2, tells="a: asks only word_problems")
    assert done.stderr.count("word_problems: 40/40 done") == 2
    assert "2 ERROR, 2 NO REFERENCE" in done.stdout
    assert [*Path("out/servers").glob("*/logs/*.log")] == [Path("out/servers/1/logs/simulated.log")]
    again = serve_eval("run s.yaml -o out")
    assert (again.returncode, "word_problems: 40" in again.stderr) == (2, False)
    assert "2 ERROR, 2 NO REFERENCE" in again.stdout


def test_a_task_without_pairs_has_its_own_reason_and_a_server_that_does_not_start_too():
    tasks = "passkey_short, {word_problems_perplexity: {num_samples: 20}}"
    serve_eval(
        "run --launcher embedded -t passkey_short,word_problems_perplexity"
        " --set word_problems_perplexity.num_samples=20 --no-reference -o first",
        exits=3,
    )
    serve_eval("references register first --references-dir refs", exits=0)
    Path("s.yaml").write_text(
        "defaults: {model: embedded, references_dir: refs, verdict: paired,"
        f" tasks: [{tasks}]}}\nplans:\n  - {{name: good, launcher: embedded}}\n"
        "  - {name: nostart, launcher: {name: llama_cpp, command: /nonexistent}}\n"
    )
    done = serve_eval("run s.yaml -o out --json")
    rows = {(row["run"], row["task"]): row for row in json.loads(done.stdout)["result"]["rows"]}
    assert rows["good", "passkey_short"]["outcome"] == "PASS"
    unbounded = "scores without bounds cannot be paired, as 'paired' does: use classic for it"
    [why] = rows["good", "word_problems_perplexity"]["reasons"]
    assert why == f"word_problems_perplexity: {unbounded}"
    for task in ("passkey_short", "word_problems_perplexity"):
        assert "/nonexistent does not exist" in rows["nostart", task]["reasons"][0]
    shown = serve_eval("run --resume out")
    assert "another suite file with verdict: classic" in shown.stdout
