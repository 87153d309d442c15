"""A reason is told once, and one for which a new run is no help says what would help."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.cli.command import serve_eval

pytestmark = pytest.mark.usefixtures("simulated_here")


@pytest.fixture(autouse=True)
def _here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


def test_an_unsupported_run_is_no_reference_and_a_resumed_one_would_be_none() -> None:
    run = serve_eval(
        "run", "--launcher", "simulated", "--set=launcher.no_completions=true", "-m", "org/m",
        "-t", "word_problems,passkey_short", "--no-reference", "-o", "run",
    )  # fmt: skip
    assert run.stdout.count("the endpoint lacks completions") == 1, run.stdout
    assert " why      word_problems and 1 more: " in run.stdout
    done = serve_eval("references", "register", "run", "--references-dir", "refs")
    assert done.returncode == 2, done.stdout
    assert "word_problems is UNSUPPORTED there" in done.stderr
    assert "Use chat (apply_chat_template: true)" in done.stderr
    assert "resume" not in done.stderr
    assert not Path("refs").exists()


def test_what_stopped_several_runs_is_told_once() -> None:
    Path("s.yaml").write_text(
        "defaults: {model: org/m, no_reference: true}\nmatrix:\n  kind:\n"
        "    - {label: sound, launcher: {name: simulated}}\n"
        "    - {label: dead, base_url: '127.0.0.1:9'}\n"
        "  tasks: [{word_problems: {num_samples: 30}}, {passkey_short: {}}]\n"
    )
    done = serve_eval("run", "s.yaml", "-o", "out")
    assert done.returncode == 4, done.stderr
    assert done.stdout.count("nothing listens on that port") == 1, done.stdout
    assert "dead_word_problems/word_problems and 1 more: EndpointError" in done.stdout
    table = serve_eval("runs", "export", "out", "--format", "table")
    assert table.stdout.count("nothing listens on that port") == 1, table.stdout
