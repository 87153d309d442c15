"""`--samples` asks exactly the named samples, says so, and compares no reference of the whole."""

import json
from pathlib import Path

import pytest

from tests.cli.command import serve_eval
from tests.json_files import read_json

pytestmark = pytest.mark.usefixtures("simulated_here")

ASKED = ("--launcher", "simulated", "-m", "org/m", "-t", "passkey_short", "--no-reference")


@pytest.fixture(autouse=True)
def _here(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)


def _ids(run):
    lines = Path(run, "samples/passkey_short.jsonl").read_text().splitlines()
    return {json.loads(line)["id"] for line in lines}


FILES = {
    "ids.txt": "7\r\n\n 12 \n7\n",
    "lines.jsonl": '{"id": "7"}\n{"id": 12, "outcome": "wrong"}\n',
    "list.json": '[{"id": "7"}, "12"]',
    "shown.json": '{"result": {"run": "r", "samples": [{"id": "7"}], "rows": [{"id": "12"}]}}',
    "repeats.jsonl": '{"id": "7#2"}\n{"id": "12"}\n',
    "bom.txt": "\ufeff7\n12\n",
}


@pytest.mark.parametrize("given", ["7,12", *FILES])
def test_exactly_the_named_samples_are_asked(given):
    if given in FILES:
        Path(given).write_text(FILES[given], newline="")
    done = serve_eval("run -o r", *ASKED, "--samples", given, exits=3)
    assert _ids("r") == {"7", "12"}
    assert "2 of 110 samples, named by --samples" in done.stdout
    assert read_json("r/plan.json")["plan"]["samples"] == ["7", "12"] or (
        given in ("repeats.jsonl", "shown.json")
    )


def test_the_wrong_answers_of_a_run_are_asked_again():
    wrong = "--set launcher.accuracy=0.5 --limit 20"
    serve_eval(f"run -o night {wrong}", *ASKED, exits=3)
    shown = serve_eval("show night --wrong --json")
    Path("wrong.json").write_text(shown.stdout)
    told = json.loads(shown.stdout)["result"]
    found = {one["id"] for one in told["samples"]}
    assert 3 < len(found) == told["found"] < 20
    first = json.loads(serve_eval("show night --wrong --json --n 2").stdout)["result"]
    assert (len(first["samples"]), first["found"]) == (2, len(found))
    again = serve_eval("run --samples wrong.json -o again", *ASKED)
    assert "the verdict says nothing of the model" in " ".join(again.stdout.split())
    assert _ids("again") == found
    serve_eval("run --samples night/scores/passkey_short.jsonl -o all", *ASKED)
    assert _ids("all") == _ids("night")


def test_an_unknown_id_names_the_nearest():
    serve_eval(
        "run --samples 12,999 -o r",
        *ASKED,
        exits=2,
        tells="passkey_short has no sample '999'. Did you mean '99'?",
    )
    two = serve_eval("run", *ASKED[:-2], "passkey_short,word_problems", "--no-reference")
    assert two.returncode in (2, 3)
    both = [one.replace("passkey_short", "passkey_short,word_problems") for one in ASKED]
    done = serve_eval("run --samples 12 -o r", *both)
    assert "word_problems has none of these samples: leave the task out" in done.stderr
    done = serve_eval("run --samples nothing.jsonl -o r", *both)
    assert "no task has a sample 'nothing.jsonl'" in done.stderr
    assert "an existing file of ids" in done.stderr
    assert not Path("r").exists()


@pytest.mark.parametrize(
    ("text", "said"),
    [("", "names no sample"), ('{"id": "7"}\n{"name": 1}\n', ":2: an entry has no id")],
)
def test_a_file_without_ids_is_refused(text, said):
    Path("ids.jsonl").write_text(text)
    serve_eval("run --samples ids.jsonl -o r", *ASKED, exits=2, tells=said)


def test_a_plan_names_samples_of_each_task_and_a_limit_draws_from_them():
    Path("plan.yaml").write_text(
        "launcher: simulated\nmodel: org/m\nno_reference: true\ntasks: [passkey_short]\n"
        "samples: {passkey_short: [1, 2, 3, 4]}\nlimit: 2\n"
    )
    done = serve_eval("run plan.yaml -o r", exits=3)
    assert len(_ids("r")) == 2
    assert _ids("r") < {"1", "2", "3", "4"}
    assert "only 2 of 4 samples are asked, drawn at random (seed 0)" in done.stdout
    serve_eval("run --resume r", exits=3)
    serve_eval("run plan.yaml --samples 1,2 -o r", exits=2, tells="holds another run")
    Path("plan.yaml").write_text(
        "launcher: simulated\nmodel: m\ntasks: [passkey_short]\nsamples: {passkey_shor: [1]}\n"
    )
    wrong = serve_eval("run plan.yaml -o x")
    assert "samples.passkey_shor: is not a task of this run. Did you mean" in wrong.stderr


def test_a_reference_of_all_samples_does_not_judge_named_ones():
    Path("refs").mkdir()
    Path("refs/passkey_short.yaml").write_text("org/m:\n  - accuracy: 90.0\n    source: ours\n")
    asked = (*ASKED[:-1], "--references-dir", "refs")
    serve_eval("run --set launcher.accuracy=1 -o all", *asked, exits=0)
    serve_eval("run --samples 1,2,3 -o named", *asked, exits=3)
    report = read_json("named/report.json")
    assert report["tasks"][0]["verdict"]["reference"] is None
    assert "the reference has no scores of single samples" in Path("named/report.json").read_text()


def test_scores_of_single_samples_judge_named_ones_and_make_no_reference():
    asked = "--launcher simulated -m org/m -t passkey_short"
    serve_eval(
        "references take --runs 1 --set launcher.accuracy=0.7 --references-dir refs -o taken"
        f" {asked}",
        exits=0,
    )
    run = f"run {asked} --set launcher.accuracy=0.7 --references-dir refs"
    named = serve_eval(f"{run} --samples 1,2,3,4 -o named")
    assert "on these 4 prompts" in named.stdout, named.stdout + named.stderr
    serve_eval("references register named --references-dir other", exits=2, tells="asked a subset")
    folder = f"references take {asked} --samples 1 --references-dir x"
    serve_eval(folder, exits=2)


def test_compare_and_load_ask_the_named_samples():
    plan = "{launcher: simulated, model: m, tasks: [passkey_short]}"
    for name in ("a", "b"):
        Path(f"{name}.yaml").write_text(plan)
    done = serve_eval("compare a.yaml b.yaml --set samples=3,4,5 -o c")
    assert _ids("c/a") == _ids("c/b") == {"3", "4", "5"}, done.stderr
    done = serve_eval("check load a.yaml --set samples=3,4,5 --concurrency 1,2 -o l")
    assert _ids("l/1") == {"3", "4", "5"}, done.stderr


def test_a_data_file_with_fewer_rows_is_a_warning_with_allow_mismatch_dataset(
    tmp_path,
):
    for split, rows in (("train", 8), ("test", 5)):
        (tmp_path / "gsm8k").mkdir(exist_ok=True)
        lines = (
            json.dumps({"question": f"How much is {i}?", "answer": f"It is {i}.\n#### {i}"})
            for i in range(rows)
        )
        (tmp_path / f"gsm8k/{split}.jsonl").write_text("\n".join(lines))
    asked = "--launcher simulated -m m -t gsm8k --dataset-root ."
    refused = serve_eval(
        f"run --no-reference -o r {asked}",
        exits=2,
        tells="test.jsonl has 5 questions; 1319 are needed",
    )
    assert "--allow-mismatch dataset" in refused.stderr
    done = serve_eval(f"run --no-reference --allow-mismatch dataset -o r {asked}", exits=3)
    assert len(Path("r/samples/gsm8k.jsonl").read_text().splitlines()) == 5
    assert (
        "num_samples is 1,319, but the data has only 5 samples; the verdict uses n = 5"
        in done.stdout
    )
    serve_eval("judge --rescore r", exits=0)
    serve_eval("run --resume r", exits=3)


def test_repeats_of_several_tasks_and_names_of_cases_name_their_samples():
    for module in ("wins", "games"):
        cases = [
            {"case": f"emre:beads:s{i}", "input": {"prompt": f"{module} {i}?"}, "expected": i}
            for i in range(6)
        ]
        Path(f"{module}.yaml").write_text(json.dumps({module: {"iterations": 2, "cases": cases}}))
    asked = "--cases wins.yaml --cases games.yaml --no-reference"
    model = ("--launcher", "simulated", "-m", "m", "--set", "launcher.accuracy=0")
    serve_eval(f"run --limit 4 -o r {asked}", *model, exits=3)
    shown = serve_eval("show r --wrong --all --json")
    Path("w.json").write_text(shown.stdout)
    shown_ids = [one["id"] for one in json.loads(shown.stdout)["result"]["samples"]]
    assert any(name.endswith("#2") for name in shown_ids)
    wrong = {name.removesuffix("#2") for name in shown_ids}
    assert len(wrong) == 8
    serve_eval(f"run --samples w.json -o again {asked}", *model, exits=3)
    for module in ("wins", "games"):
        lines = Path(f"again/samples/cases-{module}.jsonl").read_text().splitlines()
        assert {json.loads(line)["id"].removesuffix("#2") for line in lines} <= wrong
        assert len(lines) == 8
    one = ("--cases", "wins.yaml", "--no-reference", "--samples")
    serve_eval(
        "run -o one",
        *one,
        "emre:beads:s1",
        *model,
        exits=3,
        prints="1 of 6 samples, named by --samples",
    )
    serve_eval(
        "run -o other",
        *one,
        "emre:beads:s1#q000000000000",
        *model,
        exits=2,
        tells="Did you mean 'emre:beads:s1#q",
    )
