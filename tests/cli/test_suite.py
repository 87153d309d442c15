"""Suites as users run them: real servers and real files."""

import json
import signal
import subprocess
import sys
import time

import pytest

from serve_eval.cli._suite_dry_run import show
from serve_eval.workflows.suite.file import read
from tests.cli.command import environment, serve_eval
from tests.json_files import read_json

pytestmark = pytest.mark.usefixtures("simulated_here")

KEY = "sk-test-0123456789abcdef"


@pytest.fixture
def suite(data_root, tmp_path):
    """Return a suite with a sound and a damaged endpoint, two sizes and a known failure."""
    (tmp_path / "references").mkdir()
    (tmp_path / "references/gsm8k.yaml").write_text(
        "simulated:\n  - accuracy: 90.0\n    source: declared\n"
    )
    file = tmp_path / "nightly.yaml"
    damaged = "{name: simulated, accuracy: 0.9, damage: 0.6}"
    file.write_text(f"""\
defaults: {{dataset_root: {data_root}, references_dir: {tmp_path / "references"}, model: simulated}}
matrix:
  endpoint:
    - {{name: simulated, accuracy: 0.9}}
    - {{label: damaged, launcher: {damaged}, attributes: {{state: broken}}}}
  tasks: [{{gsm8k: {{num_samples: 60}}}}, {{gsm8k: {{num_samples: 90}}}}]
plans:
  - {{name: lost, model: unknown, tasks: [gsm8k], launcher: {{name: simulated}}}}
waivers:
  - match: {{attributes: {{state: broken}}}}
    reason: issue 12, broken on purpose
    until: 2999-01-01
  - {{match: {{name: simulated_gsm8k}}, reason: "mended long ago", until: 2999-01-01}}
""")
    return file


def _report(out):
    return read_json(out / "suite_report.json")


def test_a_suite_gives_one_folder_one_table_and_one_verdict(suite, tmp_path):
    out = tmp_path / "out"
    done = serve_eval(f"run {suite} -o {out} -v", OPENAI_API_KEY=KEY, exits=3)
    assert "suite nightly" in (out / "report.html").read_text()
    title, _, header, *lines = (line.strip() for line in done.stdout.splitlines())
    assert title == (
        "INCONCLUSIVE   suite nightly: 5 runs, 5 tasks: 2 FAIL (waived), 1 ERROR, 2 PASS"
    )
    assert header.split("  ")[0] == "verdict"
    assert header.split()[1:] == ["run", "state", "task", "value", "95", "%", "reference", "fails"]
    assert [line.split("  ")[0] for line in lines[:5]] == [
        "FAIL (waived)",
        "FAIL (waived)",
        "ERROR",
        "PASS",
        "PASS",
    ]
    names = [line[15:].split()[0] for line in lines[:3]]
    assert names == ["damaged_gsm8k", "damaged_gsm8k-2", "lost"]
    # In the table of deployments by tasks each size of a task has a column.
    grid = {
        line.split()[1]: [cell.split()[0] for cell in line.split("]")[1:]]
        for line in lines
        if " [" in line
    }
    assert grid["simulated"] == ["P", "P"]
    assert grid["damaged"] == ["Fw", "Fw"]
    for said in (
        " why      lost/gsm8k: NotComparableError: gsm8k: gsm8k.yaml has no model 'unknown'",
        (
            " waived   until 2999-01-01: damaged_gsm8k/gsm8k, damaged_gsm8k-2/gsm8k: issue 12,"
            " broken on purpose"
        ),
        " note     the waiver for name simulated_gsm8k is no longer needed",
        (
            " warning  simulated_gsm8k, simulated_gsm8k-2, damaged_gsm8k, damaged_gsm8k-2: the"
            " endpoint was simulated: its verdicts do not apply to any model"
        ),
    ):
        assert said in done.stdout, done.stdout
    assert "run 5 of 5: damaged_gsm8k-2" in done.stderr
    assert len(list((out / "servers").glob("*/logs/simulated.log"))) == 2
    for path in (out, *out.rglob("*")):
        assert path.stat().st_mode & 0o077 == 0, path
        assert not path.is_file() or KEY.encode() not in path.read_bytes()
    again = serve_eval(f"run --resume {out} --json --strict", SERVE_EVAL_MODEL="other")
    assert again.returncode == json.loads(again.stdout)["exit_code"] == 1
    assert "4 of 5 runs are already finished" in again.stderr
    assert _report(out)["rows"][1:] == json.loads(again.stdout)["result"]["rows"][1:]
    suite.write_text(
        suite.read_text().replace("2999-01-01\n  - {match: {name", "2001-01-01\n  - {match: {name")
    )
    serve_eval(
        f"run {suite} -o {out}",
        exits=1,
        prints="expired on 2001-01-01 (issue 12, broken on purpose);"
        " it no longer covers damaged_gsm8k",
    )
    suite.write_text(suite.read_text().replace("num_samples: 90", "num_samples: 95"))
    serve_eval(
        f"run {suite} -o {out}",
        exits=2,
        tells="simulated_gsm8k-2.tasks.gsm8k.num_samples: was 90, now 95",
    )


def test_a_dry_run_shows_runs_servers_and_requests_and_sends_nothing(suite, tmp_path):
    done = serve_eval(f"run {suite} -o {tmp_path}/out --dry-run", exits=3)
    for said in (
        "launcher simulated accuracy=0.9, damage=0.6, model simulated:",
        "  damaged_gsm8k-2: default, verdict by reference, state broken",
        "    gsm8k: 90 requests, reference 90, threshold ",
        "waiver until 2999-01-01",
        "    refused: gsm8k: gsm8k.yaml has no model 'unknown'",
        "5 runs, 1 would be refused, 1619 requests, at most 806,343 tokens; nothing was sent",
    ):
        assert said in done.stdout, done.stdout
    assert "error: the run lost would be refused: gsm8k: gsm8k.yaml has no model" in done.stderr
    assert "serve-eval references take TRUSTED_HOST:8000 --runs 3 --model unknown" in done.stderr
    assert not (tmp_path / "out").exists()


def test_a_dry_run_shows_what_starts_the_servers(data_root, tmp_path, capsys):
    (file := tmp_path / "suite.yaml").write_text(
        f"defaults: {{dataset_root: {data_root}, no_reference: true, model: org/model, limit:"
        " 3}\nmatrix:\n  endpoint:\n    - {label: one, launcher: {name: trtllm, gpus: [3],"
        " config: {max_num_tokens: 8192}}}\n    - {label: two, launcher: {name:"
        " trtllm_disaggregated, gpus: [0]}}\n  tasks: [[gsm8k], [mmlu]]\n"
    )
    assert show(read(file, {}), as_json=True) == 2
    told = json.loads(capsys.readouterr().out)["servers"]
    command = "env CUDA_VISIBLE_DEVICES=3 trtllm-serve serve org/model --host 127.0.0.1 --port 8000"
    assert [" ".join(line) for line in told[0]["commands"]] == [
        f"{command} --config servers/1/logs/trtllm.yaml"
    ]
    assert told[0]["files"] == {"servers/1/logs/trtllm.yaml": "max_num_tokens: 8192\n"}
    assert (told[1]["commands"], [run["exit_code"] for run in told[1]["runs"]]) == ([], [2, 2])
    assert all("2 GPUs are needed" in run["refused"] for run in told[1]["runs"])
    assert show(read(file, {}), as_json=False) == 2
    out = capsys.readouterr().out
    assert f"  {command} --config servers/1/logs/trtllm.yaml" in out
    pasted = out[out.index("mkdir -p") : out.index("commands:")]
    subprocess.run(["sh", "-ec", pasted], cwd=tmp_path, check=True)
    assert (tmp_path / "servers/1/logs/trtllm.yaml").read_text() == "max_num_tokens: 8192\n"


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ([], "name at least one task"),
        (["{suite}", "--resume", "{tmp}/night"], "give a suite file, or --resume"),
        (["--resume", "{tmp}/night", "-o", "{tmp}"], "the folder of the suite: do not give -o"),
        (["--resume", "{tmp}"], "holds no run: there is no plan.json"),
    ],
)
def test_what_cannot_be_meant_is_said(suite, tmp_path, arguments, said):
    (tmp_path / "night").mkdir()
    (tmp_path / "night/suite.json").write_text("{}")
    done = serve_eval(
        "run", *(part.format(suite=suite, tmp=tmp_path) for part in arguments), exits=2, tells=said
    )
    assert "Traceback" not in done.stderr


def _interrupted(suite, out, number):
    """Interrupt a suite during its second run; return its exit code and its output."""
    text = "".join(
        line for line in suite.read_text().splitlines(keepends=True) if "label: damaged" not in line
    )
    text = text.replace("accuracy: 0.9}", "accuracy: 0.9, latency_s: 0.2}").replace(
        "simulated_gsm8k,", "gsm8k,"
    )
    suite.write_text(
        text.replace("model: simulated}", "model: simulated, limits: {concurrency: 30}}")
    )
    command = [sys.executable, "-m", "serve_eval", "run", str(suite), "-o", str(out)]
    with subprocess.Popen(command, env=environment(), stderr=subprocess.PIPE, text=True) as process:
        journal, deadline = out / "runs/gsm8k-2/samples/gsm8k.jsonl", time.monotonic() + 60
        while time.monotonic() < deadline and (not journal.exists() or not journal.stat().st_size):
            time.sleep(0.02)
        process.send_signal(number)
        _, said = process.communicate(timeout=30)
    return process.returncode, said


def test_an_interrupted_suite_says_how_to_go_on_and_goes_on(suite, tmp_path):
    out = tmp_path / "out"
    code, said = _interrupted(suite, out, signal.SIGINT)
    assert code == 130
    assert f"Resume with: serve-eval run --resume {out}" in said
    had = (out / "runs/gsm8k-2/samples/gsm8k.jsonl").read_bytes()
    assert not (out / "suite_report.json").exists()
    serve_eval(f"run --resume {out}", exits=3, tells="1 of 3 runs are already finished")
    assert (out / "runs/gsm8k-2/samples/gsm8k.jsonl").read_bytes().startswith(had)
    assert [row["outcome"] for row in _report(out)["rows"]] == ["ERROR", "PASS", "PASS"]


@pytest.mark.slow
def test_a_killed_suite_ends_as_one_that_was_not(suite, tmp_path):
    code, _ = _interrupted(suite, tmp_path / "killed", signal.SIGKILL)
    assert code == -signal.SIGKILL
    serve_eval(f"run {suite} -o {tmp_path}/killed", exits=3)
    serve_eval(f"run {suite} -o {tmp_path}/whole", exits=3)
    assert _report(tmp_path / "killed")["rows"] == _report(tmp_path / "whole")["rows"]


@pytest.mark.slow
def test_a_drop_that_one_run_proves_is_not_proven_among_many(data_root, tmp_path):
    base = f"""\
defaults:
  dataset_root: {data_root}
  model: my-org/my-model
  tasks: [mmlu]
  LAST
matrix:
  RUNS
"""
    first = base.replace("LAST", "no_reference: true").replace(
        "RUNS", "endpoint: [{name: simulated, seed: 3, SIM}]"
    )
    sim = "accuracy: 0.8, flip_rate: 0.034"
    (tmp_path / "first.yaml").write_text(first.replace("SIM", sim))
    serve_eval(f"run {tmp_path}/first.yaml -o {tmp_path}/first", exits=3)
    serve_eval(
        f"references register {tmp_path}/first/runs/simulated --references-dir {tmp_path}/refs",
        exits=0,
    )
    gates = base.replace(
        "LAST", f"references_dir: {tmp_path / 'refs'}\n  verdict: {{paired: {{margin: 0.3}}}}"
    )
    damages = ", ".join(
        f"{{name: simulated, seed: 3, {sim}, run: {i}, damage: {0.006 * (i == 1)}}}"
        for i in range(1, 9)
    )
    (tmp_path / "gates.yaml").write_text(gates.replace("RUNS", f"endpoint: [{damages}]"))
    done = serve_eval(f"run {tmp_path}/gates.yaml -o {tmp_path}/gates")
    rows = _report(tmp_path / "gates")["rows"]
    alone = [row for row in rows if row["own"] == "FAIL"]
    assert alone, done.stdout
    for row in rows:
        assert row["p"] <= row["q_bh"] <= row["p_holm"]
        proven = row["p"] <= 0.05
        assert (row["own"] == "FAIL") == (proven and row["finding"] in ("FAIL", "INCONCLUSIVE")), (
            row
        )
        assert row["outcome"] == ("INCONCLUSIVE" if proven and row["p_holm"] > 0.05 else row["own"])
    assert " p holm   0.05 or less proves a drop" in done.stdout


def test_a_suite_is_judged_by_another_rule_without_asking(tmp_path):
    base = """
name: nightly
defaults: {model: m, tasks: [word_problems], limit: 120, LAST}
matrix:
  endpoint: [RUNS]
"""
    sim = "name: simulated, seed: 3, accuracy: 0.8, flip_rate: 0.02"

    def write(name, last, runs):
        (tmp_path / name).write_text(base.replace("LAST", last).replace("RUNS", runs))
        return tmp_path / name

    whole = "no_reference: true"
    first = write("first.yaml", whole, f"{{{sim}}}")
    first.write_text(first.read_text().replace(", limit: 120", ""))
    serve_eval(f"run {first} -o {tmp_path}/first", exits=3)
    refs = tmp_path / "refs"
    run = tmp_path / "first/runs/simulated"
    serve_eval(f"references register {run} --references-dir {refs}", exits=0)
    both = f"{{{sim}, run: 1}}, {{{sim}, run: 2, damage: 0.3}}"
    serve_eval(f"run -o {tmp_path}/out", write("both.yaml", whole, both), exits=3)
    before = (tmp_path / "out/suite_report.json").read_bytes()
    rule = f"--verdict paired --margin 5 --references-dir {refs}"
    done = serve_eval(
        f"judge {tmp_path}/out {rule}",
        exits=1,
        prints="suite nightly: 2 runs, 2 tasks: 1 FAIL, 1 PASS",
    )
    assert " p holm " in done.stdout
    told = json.loads(serve_eval(f"judge {tmp_path}/out --json {rule}").stdout)
    assert told["exit_code"] == 1
    assert {row["rule"] for row in told["result"]["rows"]} == {"paired"}
    assert all(row["p_holm"] is not None for row in told["result"]["rows"])
    assert (tmp_path / "out/suite_report.json").read_bytes() == before
    (tmp_path / "out/runs" / told["result"]["runs"][0]["name"] / "report.json").unlink()
    serve_eval(f"judge {tmp_path}/out {rule}", exits=1, prints="holds no finished run")
    named = serve_eval(f"references power --from {tmp_path}/out --detect 5", exits=2)
    assert all(f"out/runs/{one['name']}" in named.stderr for one in told["result"]["runs"])
