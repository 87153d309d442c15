"""Test verdicts that decide nothing, or that cut answers could turn.

A server cuts some answers at max_tokens, some before it and some by a stop string, and says so in
finish_reason, usage and stop_reason as vLLM does.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pytest

from tests.cli.command import serve_eval
from tests.scripted_server import HttpRequest, Reply, ScriptedServer, answer, models

LIMIT, QUESTIONS = 64, 40
PLAN = ("-m", "m", "--tasks", "word_problems", "--set", f"word_problems.num_samples={QUESTIONS}")
MORE = ("--set", f"word_problems.max_tokens={LIMIT}", "--set", "limits.max_attempts=1")
Script = Callable[[HttpRequest], Reply]


@pytest.fixture(scope="module")
def targets(tmp_path_factory: pytest.TempPathFactory) -> Mapping[str, tuple[int, str]]:
    """Return the number and the answer of each question by its prompt."""
    file = tmp_path_factory.mktemp("asked") / "prompts.jsonl"
    shown = serve_eval(
        "run", "--base-url", "127.0.0.1:9", *PLAN, "--no-reference", "--dump-prompts", file
    )
    assert shown.returncode == 0, shown.stderr
    rows = [json.loads(line) for line in file.read_text().splitlines()]
    return {_last_text(row["prompt"]): (i, row["target"]) for i, row in enumerate(rows)}


def _last_text(prompt: Any) -> str:
    return prompt if isinstance(prompt, str) else str(prompt[-1]["content"])


def _server(
    targets: Mapping[str, tuple[int, str]], *, wrong: int = 0, cut: int = 0, window: int = 0,
    stopped: int = 0,
) -> ScriptedServer:  # fmt: skip
    """Return a server that answers the first `wrong` questions wrongly, and cuts the last ones."""

    def reply(request: HttpRequest) -> Reply:
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


def _run(server: ScriptedServer, out: Path, *flags: str | Path) -> tuple[str, dict[str, Any]]:
    with server.serve_in_thread() as url:
        done = serve_eval("run", "--base-url", url, *PLAN, *MORE, *flags, "-o", out)
    assert (out / "report.json").exists(), done.stderr
    return " ".join(done.stdout.split()), json.loads((out / "report.json").read_text())["tasks"][0]


def test_each_cause_of_a_cut_is_counted_with_its_own_advice(
    targets: Mapping[str, tuple[int, str]], tmp_path: Path
) -> None:
    server = _server(targets, cut=3, window=2, stopped=1)
    said, task = _run(server, tmp_path / "run", "--no-reference")
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
    shown = " ".join(serve_eval("show", tmp_path / "run", "--wrong", "--all", "-v").stdout.split())
    assert "UNREADABLE, CUT OFF" in shown
    for words in ("at max_tokens: raise", "by the server's window", "by a stop string"):
        assert f"; cut {words}" in shown
    assert "serve the model with a longer one" in shown
    found = " ".join(serve_eval("diagnose", tmp_path / "run").stdout.split())
    assert "3 at max_tokens" in found
    assert "2 by the server's window" in found


def test_a_fail_that_cut_answers_could_turn_says_so_under_both_rules(
    targets: Mapping[str, tuple[int, str]], tmp_path: Path
) -> None:
    good, refs = tmp_path / "good", tmp_path / "refs"
    _run(_server(targets, wrong=4), good, "--no-reference")
    kept = serve_eval("references", "register", good, "--references-dir", refs)
    assert kept.returncode == 0, kept.stderr
    for rule in ("paired", "classic"):
        flags = ("--references-dir", refs, "--verdict", rule)
        cutting = _server(targets, wrong=4, cut=14)
        said, task = _run(cutting, tmp_path / f"{rule}-cut", *flags)
        verdict = task["verdict"]
        assert (verdict["outcome"], verdict["cut"]["outcome"]) == ("FAIL", "PASS")
        assert verdict["cut"]["value"] == 90.0
        told = "this FAIL could be PASS if the 14 cut answers were right and the value 90.00"
        assert f"cut_answers: {told}" in said
        assert told in (tmp_path / f"{rule}-cut/summary.md").read_text().replace("\\", "")
        said, task = _run(_server(targets, wrong=22, cut=1), tmp_path / f"{rule}-bad", *flags)
        assert task["verdict"]["outcome"] == "FAIL"
        assert "cut_answers:" not in said


def test_a_pass_that_cut_answers_of_the_reference_could_turn_says_so(
    targets: Mapping[str, tuple[int, str]], tmp_path: Path
) -> None:
    """A reference that cut its answers is too low, so that it passes what is worse."""
    refs = tmp_path / "refs"
    _run(_server(targets, cut=14), tmp_path / "low", "--no-reference")
    kept = serve_eval("references", "register", tmp_path / "low", "--references-dir", refs)
    assert kept.returncode == 0, kept.stderr
    flags = ("--references-dir", refs, "--verdict", "classic")
    said, task = _run(_server(targets, wrong=14), tmp_path / "run", *flags)
    verdict = task["verdict"]
    assert (verdict["outcome"], verdict["cut"]["reference_outcome"]) == ("PASS", "FAIL")
    assert (verdict["cut"]["reference_cut"], verdict["cut"]["reference_value"]) == (14, 100.0)
    assert "this PASS could be FAIL if the 14 cut answers of the reference were right" in said
    assert "reference: 14 of 40 cut, 100.0 if they were right" in said


def test_a_comparison_knows_the_cut_answers_of_both_sides(
    targets: Mapping[str, tuple[int, str]], tmp_path: Path
) -> None:
    _run(_server(targets, wrong=2, cut=2), tmp_path / "a", "--no-reference")
    _run(_server(targets, wrong=2, cut=14), tmp_path / "b", "--no-reference")
    done = serve_eval("compare", tmp_path / "a", tmp_path / "b", "-o", tmp_path / "c")
    said = " ".join(done.stdout.split())
    assert done.returncode == 1, done.stderr
    assert "this FAIL could be PASS if the 14 cut answers were right and the value 95.00" in said
    assert "A: 2 of 40 cut, 95.0 if they were right" in said
    told = json.loads((tmp_path / "c/comparison.json").read_text())["tasks"][0]["verdict"]["cut"]
    assert (told["cut"], told["reference_cut"]) == (14, 2)


def test_auto_doubles_a_limit_that_cut_and_keeps_one_that_did_not(
    targets: Mapping[str, tuple[int, str]], tmp_path: Path
) -> None:
    plan = ("run", "--base-url", "127.0.0.1:9", *PLAN, "--no-reference", "--dry-run")
    auto = ("--max-tokens", "auto")
    nothing = serve_eval(*plan, *auto, "-o", tmp_path / "a/next")
    assert "auto found no finished run" in nothing.stderr
    _run(_server(targets), tmp_path / "a/whole", "--no-reference")
    kept = serve_eval(*plan, *auto, "-o", tmp_path / "a/next")
    assert f"max_tokens {LIMIT}, which cut none of 40 answers" in kept.stderr
    assert "the longest has 12 tokens" in kept.stderr
    assert f"max_tokens: {LIMIT}\n" in kept.stdout + kept.stderr
    _run(_server(targets, cut=1), tmp_path / "b/cut", "--no-reference")
    raised = serve_eval(*plan, *auto, "-o", tmp_path / "b/next")
    assert f"max_tokens {2 * LIMIT}: {LIMIT} cut 1 of 40 answers" in raised.stderr
    refused = serve_eval("run", "--resume", tmp_path / "a/whole", *auto)
    assert refused.returncode == 2
    assert "a limit never changes within a run" in refused.stderr


NEVER = "does not decide: word_problems: no value could FAIL: ask more samples"


@pytest.mark.parametrize(
    ("limit", "more", "code", "told"),
    [
        ("1", (), 0, ""),
        ("1", ("--strict",), 1, NEVER),
        ("40", ("--strict", "--set", "run.max_detects=28"), 0, ""),
        ("40", ("--strict", "--set", "run.max_detects=27"), 1, "above max_detects = 27"),
        ("1", ("--strict", "-q"), 1, NEVER),
    ],
)
def test_a_pass_that_detects_nothing_is_not_green(
    tmp_path: Path, limit: str, more: tuple[str, ...], code: int, told: str
) -> None:
    """The classic rule detects drops of 27.8 points with 40 samples."""
    asked = ("-t", "word_problems", "--launcher", "embedded", "--limit", limit)
    done = serve_eval("run", *asked, "--verdict", "classic", *more, "-o", tmp_path / "run")
    assert done.returncode == code, done.stderr
    assert told in done.stderr
    assert ("--strict:" in done.stderr) == bool(told)


def test_max_detects_needs_strict(tmp_path: Path) -> None:
    asked = ("-t", "word_problems", "--launcher", "embedded", "-o", tmp_path / "run")
    done = serve_eval("run", *asked, "--set", "run.max_detects=20")
    assert done.returncode == 2
    assert "run.max_detects is part of --strict" in done.stderr
    assert not (tmp_path / "run").exists()


SUITE = """
defaults:
  {launcher: {name: embedded}, model: embedded, tasks: [word_problems], verdict: classic}
plans: [{name: one, limit: 1}, {name: forty, limit: 40}]
"""


@pytest.mark.parametrize(("more", "code"), [((), 0), (("--strict",), 1)])
def test_a_suite_with_a_run_that_detects_nothing_is_not_green(
    tmp_path: Path, more: tuple[str, ...], code: int
) -> None:
    (tmp_path / "s.yaml").write_text(SUITE)
    out = tmp_path / "out"
    done = serve_eval("run", tmp_path / "s.yaml", *more, "-o", out)
    assert done.returncode == code, done.stdout + done.stderr
    assert (f"--strict: one: {NEVER}" in " ".join(done.stdout.split())) == bool(more), done.stdout
    assert "--strict: forty" not in done.stdout
    done = serve_eval("judge", out, *more)
    assert done.returncode == code, done.stdout + done.stderr
