"""Test that the commands of the page for new users print what it shows."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from serve_eval.launchers._fleet.fleet import free_ports
from serve_eval.launchers._options import LOOPBACK
from tests.cli.command import serve_eval

PAGE = (Path(__file__).resolve().parents[2] / "docs/getting-started.md").read_text()
EXIT_CODES = {"run plan.yaml -o red": 1}
"""Exit codes that are not 0."""


@pytest.mark.slow
def test_the_page_for_new_users_prints_what_it_shows(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    state = {"XDG_STATE_HOME": str(tmp_path / "state"), "COLUMNS": "80"}
    [port] = free_ports(LOOPBACK, None)
    blocks = re.findall(r"^```\n(\$ .*?)^```", PAGE, re.MULTILINE | re.DOTALL)
    given, served = 0, ""
    try:
        for step in re.split(r"^\$ serve-eval ", "".join(blocks), flags=re.MULTILINE)[1:]:
            command, *shown = step.rstrip().splitlines()
            words = command.replace("8000", str(port)).replace("ID", served).split()
            done = serve_eval(*words, **state)
            served = "".join(re.findall(r"^id: +(\S+)", done.stdout, re.MULTILINE)) or served
            assert done.returncode == EXIT_CODES.get(command, 0), (command, done.stderr)
            given += 1
            printed = (done.stdout + done.stderr).replace(str(port), "8000").splitlines()
            for line in shown:
                begins = line.removesuffix("...").rstrip()
                assert any(one.startswith(begins) for one in printed), (line, printed)
            if command.startswith("references take"):
                plan = (tmp_path / "plan.yaml").read_text()
                old = "allow_missing_reference: true\n"
                assert old in plan
                (tmp_path / "plan.yaml").write_text(
                    plan.replace(old, "references_dir: my-references\n")
                )
    finally:
        serve_eval("serve", "--stop", "all", **state)
    assert given == 11
