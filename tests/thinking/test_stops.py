"""Test that neither stop strings nor limits make answers of thoughts, through sockets and files."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from serve_eval.launchers._standin.generation import ThoughtsForm
from tests.cli.command import serve_eval
from tests.thinking.flavours import FLAVOURS, LONG, flavour_in_thread

CASES = """
sums:
  scorer: words
  sampling: {max_tokens: 4000, stop: ["Question:"]}
  prompt: What is ${a} + ${b}?
  cases:
    - {case: one, input: {a: 12, b: 30}, expected: {answer: "42"}}
    - {case: two, input: {a: 20, b: 7}, expected: {answer: "27"}}
    - {case: three, input: {a: 31, b: 44}, expected: {answer: "75"}}
"""
RIGHT = " 42 or 27 or 75 "
"""All expected answers, which thoughts name without meaning them."""
THINKING = ("field", "inline", "opened")


def _shaped(name: str, **changed: Any) -> dict[str, Any]:
    """Return the thoughts of a flavour, changed."""
    form = FLAVOURS[name][1].get("thoughts", ThoughtsForm())
    given = {field: getattr(form, field) for field in ("opened", "words", "holds", "unclosed")}
    return {"thoughts": ThoughtsForm(**{**given, **changed})}


def _run(folder: Path, name: str, cases: str, **changed: Any) -> dict[str, Any]:
    """Return the report of the cases at a flavour whose thoughts are changed."""
    (folder / "cases.yaml").write_text(cases)

    with flavour_in_thread(name, **_shaped(name, **changed)) as url:
        words = ["--base-url", url, "--model", "M", "--no-reference", "-o", folder / "out"]
        ran = serve_eval("run", "--cases", folder / "cases.yaml", *words)
    assert ran.returncode == 3, ran.stderr  # no reference
    found: dict[str, Any] = json.loads((folder / "out/report.json").read_text())
    return found


def _responses(folder: Path) -> list[dict[str, Any]]:
    [file] = (folder / "out/samples").glob("*.jsonl")
    return [json.loads(line)["response"] for line in file.read_text().splitlines()]


@pytest.mark.parametrize("name", ["never", *THINKING])
def test_stop_strings_apply_behind_the_thoughts(name: str, tmp_path: Path) -> None:
    report = _run(tmp_path, name, CASES, holds=" Question: no, that is another one. ")
    result = report["tasks"][0]["result"]
    assert (result["value"], result["outcomes"]) == (100.0, {"correct": 3})
    assert all("Question:" not in one["text"] for one in _responses(tmp_path))
    told = [line for line in report["warnings"] if "within the model's thoughts" in line]
    assert bool(told) is (name != "never")
    stop = report["tasks"][0]["fingerprint"]["stop"]
    assert stop == '["Question:"]'


@pytest.mark.parametrize("name", THINKING)
def test_an_answer_that_is_cut_in_its_thoughts_is_no_answer(name: str, tmp_path: Path) -> None:
    cases = CASES.replace("4000", "40").replace(', stop: ["Question:"]', "")
    report = _run(tmp_path, name, cases, holds=RIGHT, words=LONG)
    result = report["tasks"][0]["result"]
    assert (result["value"], result["outcomes"]) == (0.0, {"reasoning_only": 3})
    assert all(one["text"] == "" and one["reasoning"] for one in _responses(tmp_path))


@pytest.mark.parametrize("name", THINKING)
def test_scorers_see_no_thoughts(name: str, tmp_path: Path) -> None:
    """The thoughts name the expected answers; the answer is another."""
    cases = CASES.replace(', stop: ["Question:"]', "").replace("What is", "Guess")
    report = _run(tmp_path, name, cases, holds=RIGHT)
    assert report["tasks"][0]["result"]["outcomes"] == {"wrong": 3}
    assert all(RIGHT in one["reasoning"] for one in _responses(tmp_path))
