"""Test commands on references, and verdicts that decide nothing.

A server cuts some answers at max_tokens, some before it and some by a stop string, and says so in
finish_reason, usage and stop_reason as vLLM does.
"""

import json
import re
import shlex

import pytest
from junitparser import JUnitXml
from typer.testing import CliRunner

from serve_eval.cli.app import app
from serve_eval.errors import PlanError, ReferenceFileError
from tests.cli.command import serve_eval
from tests.json_files import read_json
from tests.scripted_server import ScriptedServer, answer, models

OWN = """\
"[red]org/mine[/red]":
  - accuracy: 77.25
  - {quant_algo: FP8, accuracy: 76, num_samples: 12, threshold: 70, old: true, source: a table}
"""


def _run(*arguments):
    return CliRunner().invoke(app, ["references", *map(str, arguments)])


def _own(tmp_path, name="gsm8k", text=OWN):
    folder = tmp_path / "own"
    folder.mkdir(exist_ok=True)
    (folder / f"{name}.yaml").write_text(text)
    return folder


def test_list_counts_models_and_entries_of_every_file(tmp_path):
    result = _run("list", "-v", "--references-dir", _own(tmp_path))
    rows = [line.split() for line in result.stdout.splitlines()]
    assert result.exit_code == 0
    folder = str(tmp_path / "own")
    assert rows[1] == ["folder", folder]
    assert ["gsm8k", "1", "2", folder] in rows
    assert ["mixed_modality_qwen_vl", "0", "0"] in [row[:3] for row in rows]
    assert ["acceptance_length", "36", "36"] in [row[:3] for row in rows]
    assert [row[0] for row in rows if row].count("gsm8k") == 2
    first = _run("list").stdout.splitlines()
    assert len(first) <= 22
    assert _run(*shlex.split(first[-1].partition("serve-eval references ")[2])).exit_code == 0


def test_show_prints_names_as_they_are_and_own_entries_first(tmp_path):
    result = _run("show", "gsm8k", "-v", "--references-dir", _own(tmp_path))
    assert result.exit_code == 0
    table = result.stdout[result.stdout.index(" Entries\n") :]
    assert table.index("[red]org/mine[/red]") < table.index("deepseek-ai/DeepSeek-R1")
    assert " 76.000  [red]org/mine[/red] quant_algo=FP8\n" in table
    assert "num_samples=12, threshold=70.0, from a table, old: [red]org/mine[/red]" in result.stdout
    assert "\x1b" not in result.stdout
    first = _run("show", "gsm8k").stdout.splitlines()
    assert len(first) <= 22
    [command] = [line for line in first if line.startswith(" next ")]
    one = _run(*shlex.split(command.partition("serve-eval references ")[2]))
    assert one.stdout.startswith(" FOUND   gsm8k  4 entries of meta-llama/Llama-4-Maverick")


@pytest.mark.parametrize(
    ("measured", "line"),
    [
        (
            "[80, 77.25, 81]",
            "77.250 is the lowest of the source's 3 runs (80.000, 77.250, 81.000), 2.167 below"
            " their mean",
        ),
        ("[78.25]", "77.250 lies below the source's run (78.250), 1.000 below it"),
    ],
)
def test_show_names_the_bias_of_a_value_that_the_source_chose_low(tmp_path, measured, line):
    own = _own(tmp_path, text=f"m: [{{accuracy: 77.25, measured: {measured}}}]")
    shown = _run("show", "gsm8k", "--references-dir", own).stdout
    said = f"this biases the reference: {line}: a drop of that size goes unseen"
    alone = _run("show", "gsm8k", "--model", "m", "--references-dir", own).stdout
    assert f" warning  {said}\n" in alone
    assert " weak     4 entries have a warning, which -v shows\n" in shown


def test_show_of_one_model_leaves_the_others_out():
    result = _run("show", "gsm8k", "--model", "deepseek-ai/DeepSeek-R1")
    assert result.exit_code == 0
    assert "95.42" in result.stdout
    assert "Qwen" not in result.stdout


def test_show_knows_acceptance_lengths():
    result = _run("show", "acceptance_length", "--model", "TestKimiK3::test_w4a16_mxfp4[sa]")
    told = "acceptance_length  ref 1.3180, least 1.1500  TestKimiK3::test_w4a16_mxfp4[sa]"
    assert result.stdout.splitlines() == [f" FOUND   {told}"]
    whole = _run("show", "acceptance_length", "-v").stdout
    assert re.search(r"TestKimiK3::test_w4a16_mxfp4\[sa\] +1.3180 +1.1500\n", whole)
    assert "TestGPTOSS" not in result.stdout


@pytest.mark.parametrize(
    ("arguments", "what"),
    [
        (["show", "gsm9k"], "Did you mean 'gsm8k'?"),
        (
            ["show", "gsm8k", "--model", "deepseek-ai/DeepSeek-r1"],
            "Did you mean 'deepseek-ai/DeepSeek-R1'?",
        ),
        (
            ["show", "acceptance_length", "--model", "TestGPTOS::test_dflash"],
            "Did you mean 'TestGPTOSS::test_dflash'?",
        ),
    ],
)
def test_an_unknown_name_is_answered_with_the_nearest(arguments, what):
    result = _run(*arguments)
    assert isinstance(result.exception, PlanError)
    assert what in str(result.exception)


def test_control_sequences_of_a_file_do_not_reach_the_terminal(tmp_path):
    own = _own(tmp_path, text='"\\e[31mred": [{accuracy: 1}]\n')
    assert "\x1b" not in _run("show", "gsm8k", "--references-dir", own).stdout


def test_check_of_the_shipped_files_passes():
    result = _run("check")
    assert result.exit_code == 0
    assert "no problem in 22 files" in result.stdout


def test_check_lists_every_problem_of_a_file_and_of_a_folder(tmp_path):
    folder = _own(tmp_path, text="m: [{accuracy: x}]\nn: [{acuracy: 1}]\n")
    for path in (folder, folder / "gsm8k.yaml"):
        result = _run("check", path, "--junit", tmp_path / "check.xml")
        first, *rows = result.stdout.splitlines()
        assert (result.exit_code, first) == (2, f" FAIL   {path}  3 problems in 1 file")
        assert [row.split(": ")[:2] for row in rows] == [
            [f" error    {folder / 'gsm8k.yaml'}:1", "m"],
            [f" error    {folder / 'gsm8k.yaml'}:2", "n"],
            [f" error    {folder / 'gsm8k.yaml'}:2", "n"],
        ]
        [case] = [
            case for suite in JUnitXml.fromfile(str(tmp_path / "check.xml")) for case in suite
        ]
        assert case.name == str(folder / "gsm8k.yaml")
        assert all(row.removeprefix(" error    ") in case.result[0].text for row in rows)


def test_a_check_of_no_file_is_an_error(tmp_path):
    assert isinstance(_run("check", tmp_path).exception, ReferenceFileError)
    assert isinstance(_run("check", tmp_path / "none").exception, ReferenceFileError)


def test_import_tells_what_is_lost_and_ends_with_one_line(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    folder = _own(tmp_path, text="m:\n  - accuracy: 0.0\n  - {accuracy: 5.5, extra: x}\n")
    lost = "gsm8k.yaml: m: default: shadowed duplicate with ANOTHER VALUE (0.0, then 5.5), dropped"
    result = _run("import", folder, "--set", "import.commit=feedbeef")
    assert result.exit_code == 0, result.exception
    assert result.stdout.splitlines() == [
        " WRITTEN   1 file  1 entries, 0 of them old",
        " files    1 new, 0 updated",
        f" from     {folder} into references",
        f" lost     {lost}",
        " next     serve-eval references check references",
        " more     -v adds 2 more facts",
    ]
    assert _run("check", "references").exit_code == 0
    assert "commit feedbeef" in (tmp_path / "references" / "gsm8k.yaml").read_text()
    (tmp_path / "references/gsm8k.yaml").unlink()
    whole = _run("import", folder, "--verbose").stdout.splitlines()
    assert [line for line in whole if line.startswith((" lost ", " odd "))] == [
        f" lost     {lost}",
        " odd      gsm8k.yaml: m: default: key 'extra' dropped, the suite ignores it",
        " odd      gsm8k.yaml: m: default: accuracy 0 never gates",
    ]


def test_import_counts_the_files_whose_figures_changed(tmp_path):
    folder = _own(tmp_path, text="m: [{accuracy: 5.5}]\n")
    _own(tmp_path, "mmlu", "m: [{accuracy: 6.5}]\n")
    said = []
    for value, commit in (("5.5", "a"), ("5.5", "b"), ("7.5", "b")):
        _own(tmp_path, text=f"m: [{{accuracy: {value}}}]\n")
        said.append(
            _run("import", folder, "-o", tmp_path / "to", "--set", f"import.commit={commit}").stdout
        )
    assert [text.splitlines()[1].removeprefix(" files    ") for text in said] == [
        "2 new, 0 updated",
        "0 new, 0 updated",
        "0 new, 1 updated",
    ]
    assert "commit b" in (tmp_path / "to/mmlu.yaml").read_text()


def test_import_never_claims_the_snapshots_commits_for_another_folder(tmp_path):
    _run("import", _own(tmp_path), "-o", tmp_path / "plain")
    _run("import", tmp_path / "own", "-o", tmp_path / "snapshot", "--set", "import.snapshot=true")
    assert "commit not recorded" in (tmp_path / "plain" / "gsm8k.yaml").read_text()
    assert "commit 5bceeb1a" in (tmp_path / "snapshot" / "gsm8k.yaml").read_text()


def test_a_perplexity_is_taken_and_judges_the_next_run(tmp_path):
    asked = "-t word_problems_perplexity --launcher embedded"
    found = f"--references-dir {tmp_path}/refs"
    serve_eval(f"references take --runs 1 -o {tmp_path}/t {asked} {found}", exits=0)
    entry = (tmp_path / "refs/word_problems_perplexity.yaml").read_text()
    assert "sigma: " in entry
    assert "runs:" not in entry
    serve_eval(f"run -o {tmp_path}/run {asked} {found}", exits=0, prints="PASS")


LIMIT, QUESTIONS = 64, 40
PLAN = f"-m m --tasks word_problems --set word_problems.num_samples={QUESTIONS}"
MORE = f"--set word_problems.max_tokens={LIMIT} --set limits.max_attempts=1"


@pytest.fixture(scope="module")
def targets(tmp_path_factory):
    """Return the number and the answer of each question by its prompt."""
    file = tmp_path_factory.mktemp("asked") / "prompts.jsonl"
    serve_eval(f"run --base-url 127.0.0.1:9 --no-reference --dump-prompts {file} {PLAN}", exits=0)
    rows = [json.loads(line) for line in file.read_text().splitlines()]
    return {_last_text(row["prompt"]): (i, row["target"]) for i, row in enumerate(rows)}


def _last_text(prompt):
    return prompt if isinstance(prompt, str) else str(prompt[-1]["content"])


def _server(
    targets, *, wrong = 0, cut = 0, window = 0,
    stopped = 0,
):  # fmt: skip
    """Return a server that answers the first `wrong` questions wrongly, and cuts the last ones."""

    def reply(request):
        body = request.body
        text = _last_text(body.get("messages") or body["prompt"])
        if text not in targets:  # a probe
            return answer("ok", finish="length", usage=(9, 2))
        number, target = targets[text]
        right = re.split(r"####\s*", target)[-1]
        place = QUESTIONS - 1 - number
        if place < cut:
            return answer("It is", finish="length", usage=(9, LIMIT))
        if place < cut + window:
            return answer("It is", finish="length", usage=(9, LIMIT // 2))
        if place < cut + window + stopped:
            return answer("It is", choice={"stop_reason": "Q:"}, usage=(9, 5))
        return answer(f"#### {'-77' if number < wrong else right}", usage=(9, 12))

    return ScriptedServer(reply, routes={"/v1/models": models("m")})


def _run_on_server(server, out, *flags):
    with server.serve_in_thread() as url:
        done = serve_eval(f"run --base-url {url} -o {out} {PLAN} {MORE}", *flags)
    assert (out / "report.json").exists(), done.stderr
    return " ".join(done.stdout.split()), read_json(out / "report.json")["tasks"][0]


def test_each_cause_of_a_cut_is_counted_with_its_own_advice(targets, tmp_path):
    server = _server(targets, cut=3, window=2, stopped=1)
    said, task = _run_on_server(server, tmp_path / "run", "--no-reference")
    result = task["result"]
    assert result["cut"] == {"max_tokens": 3, "window": 2, "stop_string": 1}
    assert (result["value"], result["cut_value"]) == (85.0, 100.0)
    assert (result["window_tokens"], result["longest_whole"]) == (LIMIT // 2, 12)
    assert "85.0; 100.0 if the 6 cut answers were right" in said
    assert "6 of 40: 3 at max_tokens, 2 by the server's window, 1 by a stop string" in said
    assert f"3 of 40 answers were cut at max_tokens={LIMIT}: raise it on both sides" in said
    assert "2 of 40 answers were cut by the server's window after 32 tokens or fewer" in said
    assert "1 of 40 answers were cut by a stop string" in said
    page = (tmp_path / "run/report.html").read_text()
    assert "100.0 if the 6 cut answers were right" in page
    shown = " ".join(serve_eval(f"show {tmp_path}/run --wrong --all -v").stdout.split())
    assert "UNREADABLE, CUT OFF" in shown
    for words in ("at max_tokens: raise", "by the server's window", "by a stop string"):
        assert f"; cut {words}" in shown
    assert "serve the model with a longer one" in shown
    found = " ".join(serve_eval(f"diagnose {tmp_path}/run").stdout.split())
    assert "3 at max_tokens" in found
    assert "2 by the server's window" in found


def test_a_fail_that_cut_answers_could_turn_says_so_under_both_rules(targets, tmp_path):
    good, refs = tmp_path / "good", tmp_path / "refs"
    _run_on_server(_server(targets, wrong=4), good, "--no-reference")
    serve_eval(f"references register {good} --references-dir {refs}", exits=0)
    for rule in ("paired", "classic"):
        flags = ("--references-dir", refs, "--verdict", rule)
        cutting = _server(targets, wrong=4, cut=14)
        said, task = _run_on_server(cutting, tmp_path / f"{rule}-cut", *flags)
        verdict = task["verdict"]
        assert (verdict["outcome"], verdict["cut"]["outcome"]) == ("FAIL", "PASS")
        assert verdict["cut"]["value"] == 90.0
        told = "this FAIL could be PASS if the 14 cut answers were right and the value 90.00"
        assert f"cut_answers: {told}" in said
        assert told in (tmp_path / f"{rule}-cut/summary.md").read_text().replace("\\", "")
        said, task = _run_on_server(
            _server(targets, wrong=22, cut=1), tmp_path / f"{rule}-bad", *flags
        )
        assert task["verdict"]["outcome"] == "FAIL"
        assert "cut_answers:" not in said


def test_a_pass_that_cut_answers_of_the_reference_could_turn_says_so(targets, tmp_path):
    """A reference that cut its answers is too low, so that it passes what is worse."""
    refs = tmp_path / "refs"
    _run_on_server(_server(targets, cut=14), tmp_path / "low", "--no-reference")
    serve_eval(f"references register {tmp_path}/low --references-dir {refs}", exits=0)
    flags = ("--references-dir", refs, "--verdict", "classic")
    said, task = _run_on_server(_server(targets, wrong=14), tmp_path / "run", *flags)
    verdict = task["verdict"]
    assert (verdict["outcome"], verdict["cut"]["reference_outcome"]) == ("PASS", "FAIL")
    assert (verdict["cut"]["reference_cut"], verdict["cut"]["reference_value"]) == (14, 100.0)
    assert "this PASS could be FAIL if the 14 cut answers of the reference were right" in said
    assert "reference: 14 of 40 cut, 100.0 if they were right" in said


def test_a_comparison_knows_the_cut_answers_of_both_sides(targets, tmp_path):
    _run_on_server(_server(targets, wrong=2, cut=2), tmp_path / "a", "--no-reference")
    _run_on_server(_server(targets, wrong=2, cut=14), tmp_path / "b", "--no-reference")
    done = serve_eval(f"compare {tmp_path}/a {tmp_path}/b -o {tmp_path}/c")
    said = " ".join(done.stdout.split())
    assert done.returncode == 1, done.stderr
    assert "this FAIL could be PASS if the 14 cut answers were right and the value 95.00" in said
    assert "A: 2 of 40 cut, 95.0 if they were right" in said
    told = read_json(tmp_path / "c/comparison.json")["tasks"][0]["verdict"]["cut"]
    assert (told["cut"], told["reference_cut"]) == (14, 2)


def test_auto_doubles_a_limit_that_cut_and_keeps_one_that_did_not(targets, tmp_path):
    plan = f"run --base-url 127.0.0.1:9 {PLAN} --no-reference --dry-run"
    auto = "--max-tokens auto"
    nothing = serve_eval(f"{plan} {auto} -o {tmp_path}/a/next")
    assert "auto found no finished run" in nothing.stderr
    _run_on_server(_server(targets), tmp_path / "a/whole", "--no-reference")
    kept = serve_eval(f"{plan} {auto} -o {tmp_path}/a/next")
    assert f"max_tokens {LIMIT}, which cut none of 40 answers" in kept.stderr
    assert "the longest has 12 tokens" in kept.stderr
    assert f"max_tokens: {LIMIT}\n" in kept.stdout + kept.stderr
    _run_on_server(_server(targets, cut=1), tmp_path / "b/cut", "--no-reference")
    raised = serve_eval(f"{plan} {auto} -o {tmp_path}/b/next")
    assert f"max_tokens {2 * LIMIT}: {LIMIT} cut 1 of 40 answers" in raised.stderr
    serve_eval(
        f"run --resume {tmp_path}/a/whole {auto}",
        exits=2,
        tells="a limit never changes within a run",
    )


NEVER = "does not decide: word_problems: no value could FAIL: ask more samples"


@pytest.mark.parametrize(
    ("limit", "more", "code", "told"),
    [
        ("1", "", 0, ""),
        ("1", "--strict", 1, NEVER),
        ("40", "--strict --set run.max_detects=28", 0, ""),
        ("40", "--strict --set run.max_detects=27", 1, "above max_detects = 27"),
        ("1", "--strict -q", 1, NEVER),
    ],
)
def test_a_pass_that_detects_nothing_is_not_green(tmp_path, limit, more, code, told):
    """The classic rule detects drops of 27.8 points with 40 samples."""
    asked = f"-t word_problems --launcher embedded --limit {limit}"
    done = serve_eval(
        f"run --verdict classic -o {tmp_path}/run {asked} {more}", exits=code, tells=told
    )
    assert ("--strict:" in done.stderr) == bool(told)


def test_max_detects_needs_strict(tmp_path):
    asked = f"-t word_problems --launcher embedded -o {tmp_path}/run"
    serve_eval(
        f"run --set run.max_detects=20 {asked}",
        exits=2,
        tells="run.max_detects is part of --strict",
    )
    assert not (tmp_path / "run").exists()


SUITE = """
defaults:
  {launcher: {name: embedded}, model: embedded, tasks: [word_problems], verdict: classic}
plans: [{name: one, limit: 1}, {name: forty, limit: 40}]
"""


@pytest.mark.parametrize(("more", "code"), [((), 0), (("--strict",), 1)])
def test_a_suite_with_a_run_that_detects_nothing_is_not_green(tmp_path, more, code):
    (tmp_path / "s.yaml").write_text(SUITE)
    out = tmp_path / "out"
    done = serve_eval(f"run {tmp_path}/s.yaml -o {out}", *more, exits=code)
    assert (f"--strict: one: {NEVER}" in " ".join(done.stdout.split())) == bool(more), done.stdout
    assert "--strict: forty" not in done.stdout
    serve_eval(f"judge {out}", *more, exits=code)
