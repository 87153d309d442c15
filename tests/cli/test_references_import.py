"""`references import` of results of other tools, and the verdict of a run that follows."""

from __future__ import annotations

import json
import shlex
from pathlib import Path

import pytest

from serve_eval.protocol.shared import build_task
from serve_eval.schema import DataRoots, Spec
from tests.cli.command import serve_eval
from tests.workflows.references import foreign_files as foreign

pytestmark = pytest.mark.usefixtures("simulated_here")

RUN = ("run", "--launcher", "simulated", "--model", "org/m", "-t", "gsm8k")
QUIET = ("--set", "launcher.accuracy=0.9", "--set", "launcher.seed=3")


@pytest.fixture(scope="module")
def answers(data_root: Path) -> foreign.Answers:
    """Return all prompts of GSM8K without shots, nine tenths of them right."""
    task = build_task(Spec(name="gsm8k", options={"num_fewshot": 0}))
    samples = task.load(DataRoots(roots=(data_root,)), 1319).samples
    return [(str(one.prompt), float(number % 10 != 0)) for number, one in enumerate(samples)]


def _flags(out: str) -> list[str]:
    """Return the words of the printed command of a run from its tasks on."""
    [line] = [one for one in out.splitlines() if one.startswith(" next ")]
    words = shlex.split(line.partition(" -t gsm8k")[2])
    return [word for word in words if word != "--"]


def test_a_run_by_the_printed_command_has_a_paired_verdict(
    answers: foreign.Answers, data_root: Path, tmp_path: Path
) -> None:
    file = foreign.write_lm_eval(tmp_path / "log", answers, "0.4.13")
    refs = tmp_path / "refs"
    done = serve_eval("references", "import", file, "-o", refs, "--dataset-root", data_root)
    assert done.returncode == 0, done.stderr
    assert " prompts  all 1,319 are equal to ours\n" in done.stdout
    assert " scores   kept: the verdict of a run of these prompts is paired\n" in done.stdout
    run = serve_eval(*RUN, *QUIET, *_flags(done.stdout), "-o", tmp_path / "run")
    assert " (paired)\n" in run.stdout.splitlines(keepends=True)[0]
    assert run.stdout.startswith((" PASS   gsm8k", " INCONCLUSIVE   gsm8k"))
    assert "does not record" not in run.stdout
    worse = serve_eval(
        *RUN, "--set", "launcher.accuracy=0.7", *_flags(done.stdout), "-o", tmp_path / "worse"
    )
    assert (worse.returncode, worse.stdout[:14]) == (1, " FAIL   gsm8k ")


def test_a_run_of_other_prompts_is_refused_by_name_until_it_is_allowed(
    answers: foreign.Answers, data_root: Path, tmp_path: Path
) -> None:
    other = [(f"{prompt} ", score) for prompt, score in answers[:100]]
    file = foreign.write_lm_eval(tmp_path / "log", other, "0.4.9.1")
    refs = tmp_path / "refs"
    done = serve_eval("references", "import", file, "-o", refs, "--dataset-root", data_root)
    assert " prompts  0 of 100 are equal to ours\n" in done.stdout
    assert "a run is refused for prompts, which are not ours" in done.stdout
    flags = [*QUIET, *_flags(done.stdout), "-o", tmp_path / "run"]
    run = serve_eval(*RUN, *flags)
    assert run.returncode == 3
    assert "prompts is None here and '100 sha256:" in run.stderr
    assert "To compare anyway: --allow-mismatch prompts" in run.stderr
    allowed = serve_eval(*RUN, *flags, "--allow-mismatch", "prompts")
    assert "(classic)" in allowed.stdout
    assert "mismatch allowed: prompts" in allowed.stdout


def test_a_run_names_what_an_imported_reference_does_not_record(
    answers: foreign.Answers, data_root: Path, tmp_path: Path
) -> None:
    content = foreign.lm_eval_results(answers, "0.4.13")
    del content["configs"]["gsm8k"]["generation_kwargs"]["until"]
    file = foreign.write_json(tmp_path / "log/results_1.json", content)
    refs = tmp_path / "refs"
    done = serve_eval("references", "import", file, "-o", refs, "--dataset-root", data_root)
    assert " unknown  fewshot_as_multiturn, stop\n" in done.stdout
    assert " prompts  unknown: the file does not hold them\n" in done.stdout
    run = serve_eval(*RUN, *QUIET, *_flags(done.stdout), "-o", tmp_path / "run")
    assert "(classic)" in run.stdout
    assert (
        "the reference was imported (lm-eval 0.4.13, gsm8k, results_1.json), and does not record"
        " the prompts, fewshot_as_multiturn, stop: a difference there is not seen"
    ) in run.stdout


def test_an_export_of_our_own_comes_back_with_every_score(data_root: Path, tmp_path: Path) -> None:
    asked = ("--dataset-root", data_root, "--limit", "60")
    serve_eval(*RUN, *QUIET, *asked, "--no-reference", "-o", tmp_path / "run")
    serve_eval("runs", "export", tmp_path / "run", "-o", tmp_path / "log")
    refs = tmp_path / "refs"
    done = serve_eval("references", "import", tmp_path / "log", "-o", refs, asked[0], asked[1])
    assert " prompts  all 60 are equal to ours\n" in done.stdout
    again = serve_eval(*RUN, *QUIET, *asked, "--references-dir", refs, "-o", tmp_path / "again")
    assert " (paired)" in again.stdout
    assert again.stdout.startswith(" PASS "), again.stdout


def test_wrong_files_end_with_exit_code_2_and_what_to_do(tmp_path: Path) -> None:
    (tmp_path / "a.json").write_text(json.dumps({"results": 1})[:-1])
    done = serve_eval("references", "import", tmp_path / "a.json", "-o", tmp_path / "refs")
    assert done.returncode == 2
    assert f"{tmp_path}/a.json: no valid JSON" in done.stderr
    assert "The file may be cut: copy it again, whole." in done.stderr
    twice = ("--task", "gsm8k", "--task", "mmlu")
    done = serve_eval("references", "import", tmp_path / "a.json", *twice)
    assert done.returncode == 2
    assert "--task mmlu: name a task once" in done.stderr
    done = serve_eval("references", "import", tmp_path / "nowhere")
    assert done.returncode == 2


def test_json_has_the_references_with_their_protocol(tmp_path: Path) -> None:
    file = foreign.write_json(tmp_path / "log/metrics.json", foreign.sgl_metrics(0.5))
    done = serve_eval("references", "import", file, "-o", tmp_path / "refs", "--json")
    [one] = json.loads(done.stdout)["result"]["imported"]["written"]
    assert (one["task"], one["value"], one["refused"]) == ("gpqa", 50.0, "prompts")
    assert one["protocol"]["max_tokens"] == 4096
