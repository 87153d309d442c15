"""`check workers` as a command: its faces lie beside those of the run, and lead further."""

from __future__ import annotations

import json
import shlex
from collections.abc import Mapping
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from serve_eval.verdicts.exit_code import FAIL
from tests.cli.command import serve_eval
from tests.scripted_server import HttpRequest, Reply, answer
from tests.workflows.load.batch_server import targets_of
from tests.workflows.verify.model_server import ModelServer

PROMPTS, EVERY = 30, 10_000
FACES = ("report.html", "junit.xml", "summary.md")


@dataclass(kw_only=True)
class _Solver(ModelServer):
    """A model that solves word problems, or none of them."""

    targets: Mapping[str, str] = field(default_factory=dict)
    wrong: bool = False

    def reply(self, request: HttpRequest) -> Reply:
        target = self.targets.get(request.prompt)
        if target is None or request.body.get("logprobs") is not None:
            return super().reply(request)
        return answer(f"#### {int(target) + self.wrong}")


def test_a_bad_worker_is_named_on_all_faces_and_compared_with_a_sound_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    targets = targets_of(EVERY)
    with ExitStack() as stack:
        good, bad = (
            stack.enter_context(_Solver(targets=targets, wrong=wrong).server.serve_in_thread())
            for wrong in (False, True)
        )
        asked = ("--tasks", "word_problems", "--limit", str(PROMPTS), "--model", "m")
        ran = serve_eval("run", "--base-url", good, *asked, "--no-reference", "-o", "run")
        assert ran.returncode in (0, 3), ran.stderr
        of_run = [Path("run", name).read_bytes() for name in FACES]
        workers = ("--worker", good, "--worker", bad, "--samples", str(PROMPTS))
        done = serve_eval("check", "workers", "run", *workers, "--json", "--notify-text", "line")
        assert done.returncode == FAIL, done.stderr
        shown = json.loads(done.stdout)
        assert shown["result"] == json.loads(Path("run/attribution.json").read_text())
        [one] = shown["conclusions"]
        assert (one["outcome"], one["figures"]) == (
            "FAIL",
            "1 of 2 workers is worse than the others",
        )
        assert f"server {bad}: {PROMPTS} of {PROMPTS} wrong, the others 0" in one["cause"]
        assert {case["name"]: case["state"] for case in shown["cases"]} == {
            good: "passed",
            bad: "failure",
        }
        assert all(Path("run/attribution", name).is_file() for name in FACES)
        assert [Path("run", name).read_bytes() for name in FACES] == of_run
        assert Path("line").read_text().startswith("FAIL workers m: 1 of 2 workers is worse")
        [command] = shown["commands"]
        assert command == f"serve-eval verify {good} {bad} --model m"
        verified = serve_eval(*shlex.split(command)[1:])
        assert verified.returncode in (0, 1, 3), verified.stderr
        assert f"{bad} against {good}" in verified.stdout
