"""Test how diagnose compares counted tokens with the files of a model."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from pathlib import Path

import pytest

from serve_eval.evaluation.evaluate import evaluate
from serve_eval.schema import Spec
from serve_eval.workflows.diagnose.finding import Finding
from serve_eval.workflows.diagnose.prompt_counts import RULE
from serve_eval.workflows.diagnose.story import diagnose
from tests.evidence.prompt_audit.embedded_tokenizer import (
    TEMPLATE,
    local_side,
    make_folder,
    serve_folder,
)
from tests.scripted_server import ScriptedServer
from tests.workflows.diagnose.server import plan_for

SYSTEM = "<|system|>\nBe nice.<|end|>\n" + TEMPLATE


def _told(
    tmp_path: Path, served: str = TEMPLATE, files: str = TEMPLATE, *, more: int = 0, n: int = 20
) -> list[str]:
    server = serve_folder(make_folder(tmp_path / "served", served), counted_more=more)
    return [one.told for one in _diagnose(tmp_path, server, files, n) if one.rule == RULE]


def _diagnose(
    tmp_path: Path, server: ScriptedServer, files: str = TEMPLATE, n: int = 20
) -> tuple[Finding, ...]:
    plan = plan_for(tmp_path, num_samples=n, apply_chat_template=True)
    plan = replace(plan, references_dir=None, no_reference=True)

    async def ask() -> None:
        async with server.serve() as url:
            here = replace(plan, launcher=Spec(name="external", options={"base_url": url}))
            await evaluate(here, tmp_path / "out", environ={})

    asyncio.run(ask())
    with local_side(make_folder(tmp_path / "files", files)) as local:
        [run] = diagnose(tmp_path / "out", local=local).runs
    return run.findings


def test_counts_that_agree_are_told(tmp_path: Path) -> None:
    [told] = _told(tmp_path)
    assert told.startswith("the server counts as many tokens as the folder ")
    assert told.endswith(" in 20 of 20 prompts")


@pytest.mark.parametrize(
    ("served", "more", "told"),
    [
        (
            TEMPLATE,
            1,
            "1 token more than the folder F in 20 of 20 prompts: it adds the first",
        ),
        (TEMPLATE, -1, "1 token fewer than the folder F in 20 of 20 prompts: the first token"),
        (SYSTEM, 0, "more than the folder F in 20 of 20 prompts: another chat template, such as"),
    ],
)
def test_a_constant_difference_has_one_cause(
    tmp_path: Path, served: str, more: int, told: str
) -> None:
    [found] = _told(tmp_path, served, more=more)
    assert told in found.replace(str(tmp_path / "files"), "F")


def test_a_template_that_writes_a_date_is_named(tmp_path: Path) -> None:
    dated = "{{ strftime_now('%d %b %Y') }} " + TEMPLATE
    assert any("writes a date" in one for one in _told(tmp_path, files=dated))


@pytest.mark.parametrize(("tokens", "reported"), [(1, False), (4, False), (9, True)])
def test_generated_tokens_that_no_text_has_are_told(
    tmp_path: Path, tokens: int, reported: bool
) -> None:
    server = serve_folder(make_folder(tmp_path / "served"), answer_tokens=tokens)
    found = _diagnose(tmp_path, server)
    said = [one.told for one in found if one.rule == "answer_counts"]
    assert bool(said) is reported
    assert all(f"counts {tokens}.0 tokens per answer" in one for one in said)


def test_few_prompts_say_nothing(tmp_path: Path) -> None:
    assert _told(tmp_path, n=9, more=1) == []
