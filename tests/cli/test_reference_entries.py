"""Register or import references, and judge runs by them with their deployments."""

import csv
import json
import shlex

import pytest

from serve_eval.protocol.shared import build_task
from serve_eval.schema import DataRoots, Spec
from tests.cli.command import serve_eval
from tests.json_files import read_json
from tests.workflows.references import foreign_files as foreign
from tests.workflows.smoke.server import Quirks, create

pytestmark = pytest.mark.usefixtures("simulated_here")


@pytest.fixture
def base(data_root):
    flags = ["run", "--launcher", "simulated", "--model", "my-org/my-model", "--tasks", "mmlu"]
    options = ["accuracy=0.8", "flip_rate=0.034", "seed=3"]
    return [
        *flags,
        "--dataset-root",
        str(data_root),
        *(x for o in options for x in ("--set", f"launcher.{o}")),
    ]


def _verdict(out):
    return read_json(out / "report.json")["tasks"][0]["verdict"]


def test_a_small_regression_passes_the_classic_rule_and_fails_the_paired_one(base, tmp_path):
    refs = tmp_path / "refs"
    serve_eval(*base, "--no-reference", "-o", tmp_path / "r0", exits=3)
    registered = serve_eval(
        f"references register {tmp_path}/r0 --references-dir {refs}",
        exits=0,
        prints="the mean of 1 run of 4104 samples\n",
    )
    assert "1 of 3 runs: more runs would make" in registered.stdout
    shown = serve_eval(f"references show mmlu --model my-org/my-model --references-dir {refs}")
    assert "1 run of 4104 samples" in shown.stdout
    assert "3 runs are wanted" in shown.stdout
    assert "endpoint version simulator" in shown.stdout
    regressed = [
        *base,
        "--references-dir",
        str(refs),
        "--set",
        "launcher.damage=0.015",
        "--set",
        "launcher.run=1",
    ]
    classic = serve_eval(
        *regressed,
        "--verdict",
        "classic",
        "-v",
        "-o",
        tmp_path / "classic",
        exits=0,
        prints="rules_disagree: classic says PASS, paired says FAIL",
    )
    assert " prompts); " in classic.stdout
    assert " rules    classic (chosen); paired would say FAIL: a drop of" in classic.stdout
    assert _verdict(tmp_path / "classic")["paired"]["p"] < 0.01
    for face in ("summary.md", "junit.xml", "report.html"):
        told = (tmp_path / "classic" / face).read_text().replace("\\", "")
        assert "rules_disagree: classic says PASS, paired says FAIL" in told, face
    serve_eval(
        *regressed, "--verdict", "paired", "--margin", "1.0", "-o", tmp_path / "paired", exits=1
    )
    assert _verdict(tmp_path / "paired")["paired"]["margin"] == 1.0
    (tmp_path / "classic/report.json").rename(tmp_path / "kept.json")
    again = serve_eval(f"judge {tmp_path}/classic --verdict paired --margin 1.0 --json", exits=1)
    # Two runs start their requests in different orders. The drift chart sees that; the verdict does
    # not.
    ours = json.loads(again.stdout)["result"]["tasks"][0]["verdict"]
    theirs = _verdict(tmp_path / "paired")
    assert {**ours, "warnings": None} == {**theirs, "warnings": None}
    assert not (tmp_path / "classic/report.json").exists()
    serve_eval(f"judge {tmp_path}/r0 --references-dir {refs}", exits=0, prints="PASS")
    same = [
        *base,
        "--references-dir",
        str(refs),
        "--set",
        "launcher.run=2",
        "--verdict",
        "noninferiority",
    ]
    sound = serve_eval(*same, "--limit", "2000", "-o", tmp_path / "sound")
    assert _verdict(tmp_path / "sound")["paired"]["pairs"] == 2000, sound.stderr


def test_a_run_of_a_subset_is_refused_naming_how_to_ask_fewer(base, tmp_path):
    serve_eval(*base, "--no-reference", "--limit", "20", "-o", tmp_path / "r", exits=3)
    register = f"references register {tmp_path}/r --references-dir {tmp_path}/refs"
    serve_eval(register, exits=2, tells="--set TASK.num_samples=N")
    serve_eval(f"judge {tmp_path}", exits=3, tells=f"the latest run: {tmp_path / 'r'}")


def test_a_wide_theta_is_said_to_be_that_of_the_classic_rule(base, tmp_path):
    refs = tmp_path / "refs"
    small = [*base, "--set", "mmlu.num_samples=60"]
    serve_eval(*small, "--no-reference", "-o", tmp_path / "r", exits=3)
    serve_eval(f"references register {tmp_path}/r --references-dir {refs}", exits=0)
    for rule in ("classic", "noninferiority", "paired"):
        judged = serve_eval(f"judge {tmp_path}/r --references-dir {refs} --verdict", rule)
        said = "the classic rule detects only drops of" in " ".join(judged.stdout.split())
        assert said == (rule == "classic"), judged.stdout


def test_a_rule_that_needs_pairs_says_so_before_anything_is_sent(base, tmp_path):
    (tmp_path / "refs").mkdir()
    (tmp_path / "refs/mmlu.yaml").write_text("my-org/my-model: [{accuracy: 80}]\n")
    flags = [*base, "--references-dir", str(tmp_path / "refs"), "-o", str(tmp_path / "out")]
    done = serve_eval(*flags, "--verdict", "paired", exits=3, tells="no scores per sample")
    assert "references take" in done.stderr
    assert not (tmp_path / "out").exists()
    serve_eval(
        *flags, "--verdict", "paired", "--margin", "-1", exits=2, tells="margin: must be above 0"
    )


RUN = "run --launcher simulated --model org/m -t gsm8k"
QUIET = ("--set", "launcher.accuracy=0.9", "--set", "launcher.seed=3")


@pytest.fixture(scope="module")
def answers(data_root):
    """Return all prompts of GSM8K without shots, nine tenths of them right."""
    task = build_task(Spec(name="gsm8k", options={"num_fewshot": 0}))
    samples = task.load(DataRoots(roots=(data_root,)), 1319).samples
    return [(str(one.prompt), float(number % 10 != 0)) for number, one in enumerate(samples)]


def _flags(out):
    """Return the words of the printed command of a run from its tasks on."""
    [line] = [one for one in out.splitlines() if one.startswith(" next ")]
    words = shlex.split(line.partition(" -t gsm8k")[2])
    return [word for word in words if word != "--"]


def test_a_run_by_the_printed_command_has_a_paired_verdict(answers, data_root, tmp_path):
    file = foreign.write_lm_eval(tmp_path / "log", answers, "0.4.13")
    refs = tmp_path / "refs"
    done = serve_eval(
        f"references import {file} -o {refs} --dataset-root {data_root}",
        exits=0,
        prints=" prompts  all 1,319 are equal to ours\n",
    )
    assert " scores   kept: the verdict of a run of these prompts is paired\n" in done.stdout
    run = serve_eval(f"{RUN} -o {tmp_path}/run", *QUIET, *_flags(done.stdout))
    assert " (paired)\n" in run.stdout.splitlines(keepends=True)[0]
    assert run.stdout.startswith((" PASS   gsm8k", " INCONCLUSIVE   gsm8k"))
    assert "does not record" not in run.stdout
    worse = serve_eval(
        f"{RUN} --set launcher.accuracy=0.7 -o {tmp_path}/worse", *_flags(done.stdout)
    )
    assert (worse.returncode, worse.stdout[:14]) == (1, " FAIL   gsm8k ")


def test_a_run_of_other_prompts_is_refused_by_name_until_it_is_allowed(
    answers, data_root, tmp_path
):
    other = [(f"{prompt} ", score) for prompt, score in answers[:100]]
    file = foreign.write_lm_eval(tmp_path / "log", other, "0.4.9.1")
    refs = tmp_path / "refs"
    done = serve_eval(f"references import {file} -o {refs} --dataset-root {data_root}")
    assert " prompts  0 of 100 are equal to ours\n" in done.stdout
    assert "a run is refused for prompts, which are not ours" in done.stdout
    flags = [*QUIET, *_flags(done.stdout), "-o", tmp_path / "run"]
    run = serve_eval(RUN, *flags, exits=3, tells="prompts is None here and '100 sha256:")
    assert "To compare anyway: --allow-mismatch prompts" in run.stderr
    allowed = serve_eval(f"{RUN} --allow-mismatch prompts", *flags)
    assert "(classic)" in allowed.stdout
    assert "mismatch allowed: prompts" in allowed.stdout


def test_a_run_names_what_an_imported_reference_does_not_record(answers, data_root, tmp_path):
    content = foreign.lm_eval_results(answers, "0.4.13")
    del content["configs"]["gsm8k"]["generation_kwargs"]["until"]
    file = foreign.write_json(tmp_path / "log/results_1.json", content)
    refs = tmp_path / "refs"
    done = serve_eval(f"references import {file} -o {refs} --dataset-root {data_root}")
    assert " unknown  fewshot_as_multiturn, stop\n" in done.stdout
    assert " prompts  unknown: the file does not hold them\n" in done.stdout
    run = serve_eval(f"{RUN} -o {tmp_path}/run", *QUIET, *_flags(done.stdout))
    assert "(classic)" in run.stdout
    assert (
        "the reference was imported (lm-eval 0.4.13, gsm8k, results_1.json), and does not record"
        " the prompts, fewshot_as_multiturn, stop: a difference there is not seen"
    ) in run.stdout


def test_an_export_of_our_own_comes_back_with_every_score(data_root, tmp_path):
    asked = ("--dataset-root", data_root, "--limit", "60")
    serve_eval(f"{RUN} --no-reference -o {tmp_path}/run", *QUIET, *asked)
    serve_eval(f"runs export {tmp_path}/run -o {tmp_path}/log")
    refs = tmp_path / "refs"
    done = serve_eval(f"references import {tmp_path}/log -o {refs} {asked[0]} {asked[1]}")
    assert " prompts  all 60 are equal to ours\n" in done.stdout
    again = serve_eval(f"{RUN} -o {tmp_path}/again", *QUIET, *asked, "--references-dir", refs)
    assert " (paired)" in again.stdout
    assert again.stdout.startswith(" PASS "), again.stdout


def test_wrong_files_end_with_exit_code_2_and_what_to_do(tmp_path):
    (tmp_path / "a.json").write_text(json.dumps({"results": 1})[:-1])
    done = serve_eval(
        f"references import {tmp_path}/a.json -o {tmp_path}/refs",
        exits=2,
        tells=f"{tmp_path}/a.json: no valid JSON",
    )
    assert "The file may be cut: copy it again, whole." in done.stderr
    twice = "--task gsm8k --task mmlu"
    serve_eval(
        f"references import {tmp_path}/a.json {twice}",
        exits=2,
        tells="--task mmlu: name a task once",
    )
    serve_eval(f"references import {tmp_path}/nowhere", exits=2)


def test_json_has_the_references_with_their_protocol(tmp_path):
    file = foreign.write_json(tmp_path / "log/metrics.json", foreign.sgl_metrics(0.5))
    done = serve_eval(f"references import {file} -o {tmp_path}/refs --json")
    [one] = json.loads(done.stdout)["result"]["imported"]["written"]
    assert (one["task"], one["value"], one["refused"]) == ("gpqa", 50.0, "prompts")
    assert one["protocol"]["max_tokens"] == 4096


ASKED = "--launcher simulated -m org/m -t word_problems --set word_problems.num_samples=60"
DAMAGED = "--set launcher.damage=0.5"
TAKEN = "launcher simulated, server simulator, damage 0.5"


@pytest.fixture(scope="module")
def made(tmp_path_factory, simulated_here):
    """Return a folder with a reference of a damaged server in refs, and a judged run in sound."""
    top = tmp_path_factory.mktemp("deployments")
    refs = f"--references-dir {top}/refs"
    words = f"--runs 1 {ASKED} {DAMAGED} {refs} -o {top}/taken"
    serve_eval(f"references take {words}", exits=0, prints=f"taken at {TAKEN}")
    done = serve_eval(f"run -o {top}/sound {ASKED} {refs}", exits=0)
    (top / "printed").write_text(done.stdout)
    return top


def test_the_options_of_the_server_are_shown(made):
    own = f"--model org/m --references-dir {made}/refs"
    shown = serve_eval(f"references show word_problems {own}")
    assert f"taken at {TAKEN}" in shown.stdout
    serve_eval(f"references check {made}/refs", exits=0)


def test_a_run_says_that_its_reference_was_launched_otherwise(made):
    line = (
        "the reference was taken at launcher simulated, damage 0.5; this run is at launcher"
        " simulated"
    )
    assert line in (made / "printed").read_text()
    alike = serve_eval(f"run --references-dir {made}/refs -o {made}/alike {ASKED} {DAMAGED}")
    assert "the reference was taken at" not in alike.stdout


@pytest.mark.parametrize("to_format", ["table", "markdown", "latex", "svg"])
def test_a_table_names_the_deployment_of_its_reference(made, to_format):
    for more in ([], ["--differences"]):
        done = serve_eval(
            f"runs export {made}/sound --format {to_format}", *more, COLUMNS="200", exits=0
        )
        assert "damage 0.5" in done.stdout, more
    done = serve_eval(f"runs export {made}/sound --format csv")
    [row] = csv.DictReader(done.stdout.splitlines())
    assert TAKEN in row["word_problems reference of"]


def test_runs_of_different_deployments_are_pointed_out(made):
    refs = made / "mixed"
    runs = f"{made}/taken/run_1 {made}/sound"
    serve_eval(
        f"references register --references-dir {refs} {runs}",
        exits=0,
        prints="the runs are of 2 different deployments",
    )
    own = ("--model", "org/m", "--references-dir", refs)
    shown = serve_eval("references show word_problems", *own)
    assert f"taken at {TAKEN} and launcher simulated, server simulator" in shown.stdout


def test_an_endpoint_that_runs_is_named_by_its_address(tmp_path):
    refs = f"--references-dir {tmp_path}/refs"
    with create(Quirks()).serve_in_thread() as url:
        serve_eval(
            f"references take {url} --runs 1 -t passkey_short -o {tmp_path}/taken {refs}",
            exits=0,
            prints=f" taken at endpoint {url}, server",
        )
        judged = serve_eval(f"run --base-url {url} -t passkey_short -o {tmp_path}/judged {refs}")
    assert "the reference was taken at" not in judged.stdout
