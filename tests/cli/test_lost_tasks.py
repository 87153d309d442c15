"""Tasks that an error kept from being asked stand in every table, in their deployments' rows."""

from __future__ import annotations

import csv
from pathlib import Path

import pytest

from tests.cli.command import serve_eval

pytestmark = pytest.mark.usefixtures("simulated_here")

SUITE = """\
defaults: {model: org/m, no_reference: true}
matrix:
  kind:
    - {label: sound, launcher: {name: simulated, accuracy: 0.9}}
    - {label: dead, base_url: "127.0.0.1:9"}
  tasks: [{word_problems: {num_samples: 30}}, {gsm8k: {num_samples: 7}}]
"""


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory, simulated_here: None) -> Path:
    """Return the folder of a suite in which one task has no data, and one deployment is dead."""
    top = tmp_path_factory.mktemp("lost")
    (top / "s.yaml").write_text(SUITE)
    done = serve_eval("run", top / "s.yaml", "-o", top / "out", "-v", COLUMNS="80")
    assert done.returncode == 4, done.stderr
    (top / "printed").write_text(done.stdout)
    return top


def test_every_planned_task_has_a_column_and_every_deployment_one_row(made: Path) -> None:
    done = serve_eval("runs", "export", made / "out", "--format", "csv")
    sound, dead = csv.DictReader(done.stdout.splitlines())
    assert (sound["run"], dead["run"]) == ("sound", "dead")
    assert sound["server"] == "simulator"
    assert [sound["gsm8k verdict"], sound["word_problems scored"]] == ["ERROR", "30"]
    assert "GSM8K was not found" in sound["gsm8k no value because"]
    assert [dead["word_problems verdict"], dead["gsm8k verdict"]] == ["ERROR", "ERROR"]


def test_a_task_that_was_not_asked_has_the_number_of_samples_that_was_planned(made: Path) -> None:
    done = serve_eval("runs", "export", made / "out", "--format", "csv")
    sound, dead = csv.DictReader(done.stdout.splitlines())
    assert {sound["gsm8k planned"], dead["gsm8k planned"]} == {"7"}
    assert dead["word_problems planned"] == "30"


@pytest.mark.parametrize("to_format", ["table", "markdown", "latex", "svg"])
def test_all_formats_have_the_column(made: Path, to_format: str) -> None:
    text = serve_eval("runs", "export", made / "out", "--format", to_format).stdout
    assert "gsm8k" in text
    assert "n 7" in text
    assert (
        serve_eval("runs", "export", made / "out", "--format", to_format, "--all").returncode == 0
    )


def test_the_printed_table_has_it_too(made: Path) -> None:
    lines = (made / "printed").read_text().splitlines()
    [head] = [one.strip() for one in lines if "run   " in one and "gsm8k" in one]
    assert "word_problems" in head
    [row] = [one.strip() for one in lines if one.strip().startswith("sound  ")]
    assert row.endswith("- E")


def test_a_task_that_was_planned_with_other_options_has_a_column_of_its_own(
    tmp_path: Path,
) -> None:
    plans = "".join(
        f"  - {{name: {name}, {where}, tasks: [{{word_problems: {{num_samples: {n}}}}}]}}\n"
        for name, where, n in (
            ("sound", "launcher: {name: simulated}", 30),
            ("alike", "base_url: '127.0.0.1:9'", 30),
            ("other", "base_url: '127.0.0.1:9'", 31),
        )
    )
    (tmp_path / "s.yaml").write_text(
        f"defaults: {{model: org/m, no_reference: true}}\nplans:\n{plans}"
    )
    assert serve_eval("run", tmp_path / "s.yaml", "-o", tmp_path / "out").returncode == 4
    done = serve_eval("runs", "export", tmp_path / "out", "--format", "csv")
    rows = {row["run"]: row for row in csv.DictReader(done.stdout.splitlines())}
    assert rows["alike"]["word_problems planned"] == "30"
    assert rows["other"]["word_problems planned"] == ""
    assert rows["other"]["word_problems (num_samples 31) planned"] == "31"
