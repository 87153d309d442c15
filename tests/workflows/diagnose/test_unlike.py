"""Diagnose reports answers that look unlike the reference's, without a key."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from pathlib import Path

import pytest

from serve_eval.evaluation.evaluate import evaluate
from serve_eval.schema import Plan, Spec
from serve_eval.verdicts import reference_samples
from serve_eval.verdicts.reference_samples import StoredAnswers, pack, unpack
from serve_eval.workflows.diagnose.evidence import read
from serve_eval.workflows.diagnose.finding import Finding
from serve_eval.workflows.diagnose.run_rules import findings
from serve_eval.workflows.references.register import register
from tests.scripted_server import HttpRequest, Reply, ScriptedServer, answer

PROMPTS, TOKENS = 60, 20
Said = Callable[[int, str], tuple[str, int, str]]
"""The text, tokens and end of an answer, by its number and the usual text."""


def _usual(number: int, text: str) -> tuple[str, int, str]:
    return text, TOKENS, "stop"


def _run(out: Path, said: Said, references: Path | None = None) -> None:
    numbers: dict[str, int] = {}

    def reply(request: HttpRequest) -> Reply:
        number = numbers.setdefault(request.prompt, len(numbers))
        text = f"So {number} of {len(request.prompt)} make {number + 7}, which is what was asked."
        text, tokens, end = said(number, text)
        return answer(text, finish=end, usage=(9, min(tokens, request.body["max_tokens"])))

    async def ask() -> None:
        async with ScriptedServer(reply, paths=["/v1/completions"]).serve() as url:
            plan = Plan(
                model="m",
                launcher=Spec(name="external", options={"base_url": url}),
                tasks=(Spec(name="word_problems", options={"num_samples": PROMPTS}),),
                no_reference=references is None,
                references_dir=None if references is None else str(references),
            )
            await evaluate(plan, out, environ={})

    asyncio.run(ask())


@pytest.fixture(scope="module")
def references(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("unlike")
    _run(folder / "run", _usual)
    register([folder / "run"], folder / "references")
    return folder / "references"


def _find(out: Path) -> Sequence[Finding]:
    return [one for one in findings(read(out)) if one.rule == "unlike"]


@pytest.mark.parametrize(
    ("said", "told"),
    [
        (_usual, None),
        (lambda n, text: (text, TOKENS + n % 3 - 1, "stop"), None),
        (lambda n, text: (text, TOKENS - 3, "stop"), "answers are shorter than the reference's"),
        (lambda n, text: (text, TOKENS + 3, "stop"), "answers are longer than the reference's"),
        (
            lambda n, text: (f"{n} " + "!" * 30 if n % 3 == 0 else text, TOKENS, "stop"),
            "20 of 60 answers repeat themselves to the end, and 0 of the reference's",
        ),
        (
            lambda n, text: ("Все так, и это верно." + text if n % 3 == 0 else text, 20, "stop"),
            "20 of 60 answers have Cyrillic letters, and 0 of the reference's",
        ),
        (
            lambda n, text: (text, TOKENS, "length" if n % 3 == 0 else "stop"),
            "20 of 60 answers were cut at max_tokens, and 0 of the reference's",
        ),
        (
            lambda n, text: (
                "The answer to all of these is 12." if n % 3 == 0 else text,
                TOKENS,
                "stop",
            ),
            "20 of 60 answers equal the answer to another prompt, and 0 of the reference's",
        ),
        (lambda n, text: (f"{n} " + "!" * 30 if n % 6 == 0 else text, TOKENS, "stop"), None),
    ],
    ids=["same", "near", "shorter", "longer", "loops", "script", "cut", "shared", "too few"],
)
def test_answers_unlike_the_reference_are_reported(
    references: Path, tmp_path: Path, said: Said, told: str | None
) -> None:
    _run(tmp_path / "run", said, references)
    found = _find(tmp_path / "run")
    assert [one.told.startswith(told or "nothing") for one in found] == [True] * bool(told)


def test_stored_answers_are_packed_and_read_again(references: Path) -> None:
    [file] = references.glob("samples/*.json")
    content = reference_samples.read(file, _checksum(references))
    assert content.answers is not None
    assert content.answers.lengths == (TOKENS,) * PROMPTS
    assert content.answers.scripts == frozenset()
    odd = StoredAnswers(
        counted=False,
        lengths=(0, 70000, 5),
        cut=(True, False, True),
        looping=(False, True, False),
        shared=(False, False, True),
        scripts=frozenset({"CJK", "GREEK"}),
    )
    again = unpack(pack(odd), 3)
    assert again.lengths == (0, 65535, 5)
    assert (again.cut, again.looping, again.shared) == (odd.cut, odd.looping, odd.shared)
    assert (again.counted, again.scripts) == (False, odd.scripts)
    with pytest.raises(ValueError, match="belong to 4 answers"):
        unpack(pack(odd), 4)
    assert odd.take([2, 0]).lengths == (5, 0)


def _checksum(references: Path) -> str:
    [line] = [
        line for line in (references / "word_problems.yaml").read_text().splitlines()
        if "sha256" in line
    ]  # fmt: skip
    return line.rpartition(":")[2].strip().strip("'\"")
