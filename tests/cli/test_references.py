"""Test the commands on references, also of scores without bounds."""

from __future__ import annotations

import re
import shlex
from pathlib import Path

import pytest
from junitparser import JUnitXml
from typer.testing import CliRunner, Result

from serve_eval.cli.app import app
from serve_eval.errors import PlanError, ReferenceFileError
from tests.cli.command import serve_eval

OWN = """\
"[red]org/mine[/red]":
  - accuracy: 77.25
  - {quant_algo: FP8, accuracy: 76, num_samples: 12, threshold: 70, old: true, source: a table}
"""


def _run(*arguments: str | Path) -> Result:
    return CliRunner().invoke(app, ["references", *map(str, arguments)])


def _own(tmp_path: Path, name: str = "gsm8k", text: str = OWN) -> Path:
    folder = tmp_path / "own"
    folder.mkdir(exist_ok=True)
    (folder / f"{name}.yaml").write_text(text)
    return folder


def test_list_counts_models_and_entries_of_every_file(tmp_path: Path) -> None:
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


def test_show_prints_names_as_they_are_and_own_entries_first(tmp_path: Path) -> None:
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
def test_show_names_the_bias_of_a_value_that_the_source_chose_low(
    tmp_path: Path, measured: str, line: str
) -> None:
    own = _own(tmp_path, text=f"m: [{{accuracy: 77.25, measured: {measured}}}]")
    shown = _run("show", "gsm8k", "--references-dir", own).stdout
    said = f"this biases the reference: {line}: a drop of that size goes unseen"
    alone = _run("show", "gsm8k", "--model", "m", "--references-dir", own).stdout
    assert f" warning  {said}\n" in alone
    assert " weak     4 entries have a warning, which -v shows\n" in shown


def test_show_of_one_model_leaves_the_others_out() -> None:
    result = _run("show", "gsm8k", "--model", "deepseek-ai/DeepSeek-R1")
    assert result.exit_code == 0
    assert "95.42" in result.stdout
    assert "Qwen" not in result.stdout


def test_show_knows_acceptance_lengths() -> None:
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
def test_an_unknown_name_is_answered_with_the_nearest(arguments: list[str], what: str) -> None:
    result = _run(*arguments)
    assert isinstance(result.exception, PlanError)
    assert what in str(result.exception)


def test_control_sequences_of_a_file_do_not_reach_the_terminal(tmp_path: Path) -> None:
    own = _own(tmp_path, text='"\\e[31mred": [{accuracy: 1}]\n')
    assert "\x1b" not in _run("show", "gsm8k", "--references-dir", own).stdout


def test_check_of_the_shipped_files_passes() -> None:
    result = _run("check")
    assert result.exit_code == 0
    assert "no problem in 22 files" in result.stdout


def test_check_lists_every_problem_of_a_file_and_of_a_folder(tmp_path: Path) -> None:
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


def test_a_check_of_no_file_is_an_error(tmp_path: Path) -> None:
    assert isinstance(_run("check", tmp_path).exception, ReferenceFileError)
    assert isinstance(_run("check", tmp_path / "none").exception, ReferenceFileError)


def test_import_tells_what_is_lost_and_ends_with_one_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
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


def test_import_counts_the_files_whose_figures_changed(tmp_path: Path) -> None:
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


def test_import_never_claims_the_snapshots_commits_for_another_folder(tmp_path: Path) -> None:
    _run("import", _own(tmp_path), "-o", tmp_path / "plain")
    _run("import", tmp_path / "own", "-o", tmp_path / "snapshot", "--set", "import.snapshot=true")
    assert "commit not recorded" in (tmp_path / "plain" / "gsm8k.yaml").read_text()
    assert "commit 5bceeb1a" in (tmp_path / "snapshot" / "gsm8k.yaml").read_text()


def test_a_perplexity_is_taken_and_judges_the_next_run(tmp_path: Path) -> None:
    asked = ("-t", "word_problems_perplexity", "--launcher", "embedded")
    found = ("--references-dir", tmp_path / "refs")
    taken = serve_eval("references", "take", *asked, *found, "--runs", "1", "-o", tmp_path / "t")
    assert taken.returncode == 0, taken.stderr
    entry = (tmp_path / "refs/word_problems_perplexity.yaml").read_text()
    assert "sigma: " in entry
    assert "runs:" not in entry
    done = serve_eval("run", *asked, *found, "-o", tmp_path / "run")
    assert done.returncode == 0, done.stdout + done.stderr
    assert "PASS" in done.stdout
