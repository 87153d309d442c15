"""The demo on the real model: each act shows what it claims to show."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from serve_eval.workflows.demo import acts
from tests.cli.command import serve_eval


@pytest.mark.slow
def test_every_act_of_the_demo_ends_as_expected_and_leaves_a_page(tmp_path: Path) -> None:
    done = serve_eval("setup", "demo", "-o", tmp_path / "demo")
    assert done.returncode == 0, done.stdout + done.stderr
    for act in acts():
        folder = tmp_path / "demo" / act.name
        (task,) = json.loads((folder / "report.json").read_text())["tasks"]
        assert task["result"]["scored"] == 500
        assert f"<title>run: {task['verdict']['outcome']} " in (folder / "report.html").read_text()
    (seen,) = json.loads((tmp_path / "demo/int4-g32/report.json").read_text())["tasks"]
    assert (seen["verdict"]["outcome"], seen["verdict"]["rule"]) == ("FAIL", "paired")
    (power,) = json.loads((tmp_path / "demo/int4-g32-classic/report.json").read_text())["tasks"]
    assert (power["verdict"]["outcome"], power["verdict"]["rule"]) == ("PASS", "classic")
    assert power["verdict"]["paired"]["finding"] == "FAIL"
