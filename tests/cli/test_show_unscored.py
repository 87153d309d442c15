"""`show --failed` names the scorer's error and the expected value; a wrong code folder stops it."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from tests.cli.command import serve_eval

pytestmark = pytest.mark.usefixtures("simulated_here")
PAGE = (Path(__file__).resolve().parents[2] / "docs/extending.md").read_text()


def _write_code(folder: Path) -> Path:
    """Write the example of the page, with a scorer that fails for one river."""
    blocks = re.findall(r"^```python\n(.*?)^```", PAGE, re.MULTILINE | re.DOTALL)
    [task] = [one for one in blocks if "def task(*, article" in one]
    [reading] = [one for one in blocks if "def grade_name" in one]
    broken = (
        '        if sample.id == "Rhine":\n            raise KeyError("units")\n        return gr'
    )
    tasks = folder / "mine/tasks"
    tasks.mkdir(parents=True)
    (tasks / "rivers.py").write_text(task.replace("        return gr", broken))
    (tasks / "_reading.py").write_text(reading)
    return folder / "mine"


def test_a_sample_without_a_score_shows_the_error_and_what_was_expected(tmp_path: Path) -> None:
    mine, out = _write_code(tmp_path), tmp_path / "out"
    asked = ("-t", "rivers", "--launcher", "simulated", "-m", "m", "--no-reference")
    done = serve_eval("run", *asked, "--include-path", mine, "-o", out)
    assert (out / "report.json").exists(), done.stderr
    done = serve_eval("show", out, "--failed")
    assert re.search(r"^ expected +North Sea$", done.stdout, re.MULTILINE), done.stdout
    assert re.search(r"^ failure +KeyError: 'units'", done.stdout, re.MULTILINE)
    assert " answer " in done.stdout
    done = serve_eval("show", out, "--failed", "--brief")
    row = r"^ not scored +Rhine +North Sea +the scorer failed: KeyError: "
    assert re.search(row, done.stdout, re.MULTILINE), done.stdout


def test_a_wrong_folder_of_code_is_the_only_error(tmp_path: Path) -> None:
    lost = tmp_path / "nowhere"
    asked = ("-t", "rivers", "--launcher", "mine", "--verdict", "own", "-m", "m")
    done = serve_eval("run", *asked, "--include-path", lost, "-o", tmp_path / "out")
    assert done.returncode == 2
    assert f"include_path: {lost} is not a folder" in done.stderr
    assert "unknown" not in done.stderr
    done = serve_eval("show", _write_code(tmp_path), "--include-path", lost)
    assert done.returncode == 2
    assert f"include_path: {lost} is not a folder" in done.stderr
