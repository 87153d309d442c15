"""A foreign package called launchers is named and refused, and its code does not run."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.cli.command import environment

ROOT = Path(__file__).resolve().parents[2]
FOREIGN = "raise SystemExit('the code of others was run')\n"


def _serve_eval(
    at: Path, *path: Path, command: tuple[str, ...] = ("list", "launchers")
) -> tuple[int, str, str]:
    """Run the command in an empty folder, with these folders first on `sys.path`."""
    done = subprocess.run(
        [sys.executable, "-P", "-m", "serve_eval", *command],
        env=environment(PYTHONPATH=os.pathsep.join(map(str, path)), PYTHONDONTWRITEBYTECODE="1"),
        cwd=at,
        capture_output=True,
        text=True,
        check=False,
        timeout=60,
    )
    return done.returncode, done.stdout, done.stderr


@pytest.mark.parametrize("file", ["launchers/__init__.py", "launchers.py"])
@pytest.mark.parametrize("command", [("list", "launchers"), ("diagnose", "nowhere")])
def test_one_that_is_found_first_is_refused_with_its_path_and_what_to_do(
    tmp_path: Path, file: str, command: tuple[str, ...]
) -> None:
    other = tmp_path / "site" / file
    other.parent.mkdir(parents=True)
    other.write_text(FOREIGN)
    told = _serve_eval(tmp_path, tmp_path / "site", ROOT, command=command)
    said, hint = told[2].splitlines()
    assert (told[0], told[1], said) == (
        2,
        "",
        f"error: another package is called launchers: {other}",
    )
    assert f"serve-eval needs {ROOT / 'launchers'}. Uninstall or rename the other package" in hint


def test_one_that_has_overwritten_ours_is_refused_with_the_name_of_its_distribution(
    tmp_path: Path,
) -> None:
    site = tmp_path / "site"
    (site / "launchers").mkdir(parents=True)
    (site / "serve_eval").symlink_to(ROOT / "serve_eval")
    (site / "launchers/__init__.py").write_text(FOREIGN)
    (site / "rocket_tools-1.0.dist-info").mkdir()
    (site / "rocket_tools-1.0.dist-info/METADATA").write_text(
        "Metadata-Version: 2.1\nName: rocket-tools\nVersion: 1.0\n"
    )
    (site / "rocket_tools-1.0.dist-info/top_level.txt").write_text("launchers\n")
    code, _, told = _serve_eval(tmp_path, site)
    assert code == 2
    assert (
        f"another package is called launchers: {site}/launchers/__init__.py (of rocket-tools)"
        in told
    )
    assert "It has overwritten files of serve-eval." in told


def test_ours_that_is_missing_is_told(tmp_path: Path) -> None:
    site = tmp_path / "site"
    site.mkdir()
    (site / "serve_eval").symlink_to(ROOT / "serve_eval")
    script = (
        f"import sys; sys.path = [{str(site)!r}, *(p for p in sys.path if p != {str(ROOT)!r})]\n"
    )
    script += "sys.meta_path = [one for one in sys.meta_path if 'editable' not in str(one)]\n"
    script += (
        "sys.path = [p for p in sys.path if not __import__('os').path.exists(p + '/launchers')]\n"
    )
    script += "from serve_eval.plugins import registry; registry.names('launchers')\n"
    done = subprocess.run(
        [sys.executable, "-P", "-c", script],
        env=environment(),
        cwd=tmp_path,
        capture_output=True,
        text=True,
        check=False,
    )
    assert f"PlanError: {site}/launchers, a part of serve-eval, is missing" in done.stderr


def test_one_elsewhere_on_the_path_does_no_harm(tmp_path: Path) -> None:
    (tmp_path / "site/launchers").mkdir(parents=True)
    (tmp_path / "site/launchers/__init__.py").write_text(FOREIGN)
    code, out, _ = _serve_eval(tmp_path, ROOT, tmp_path / "site")
    assert code == 0
    assert "\n  trtllm: " in out
