"""Test the token that begins a text.

Files and servers report it, and warnings say if it is missing.
"""

from __future__ import annotations

import asyncio
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from serve_eval.client.client import Client
from serve_eval.errors import PlanError
from serve_eval.evaluation.capabilities import prompt_logprobs
from serve_eval.evaluation.settle import ask_prefix, remarks, settle_prefixes
from serve_eval.launchers import embedded, simulated
from serve_eval.launchers._simulated.simulator import SimulatorConfig, serve
from serve_eval.plan.prepared_task import PreparedTask
from serve_eval.plugins import extensions
from serve_eval.protocol import special_tokens
from serve_eval.schema import Ability, Dataset, Endpoint, Limits, Need, Plan, Sample, Spec
from tests.evaluation.test_capabilities import prepared

MARK = {"begins_with": "<s>"}


def _told(**server: Any) -> str | bool:
    async def asked() -> str | bool:
        async with (
            serve(SimulatorConfig(**server)) as url,
            Client(Endpoint(base_url=url, model="simulated"), Limits()) as client,
        ):
            assert (await prompt_logprobs(client))[0].works
            return await ask_prefix(client, None, {})

    return asyncio.run(asked())


@pytest.mark.parametrize("form", ["echo", "prompt_logprobs"])
def test_what_an_endpoint_tells_is_used_where_it_is_one_token(form: str) -> None:
    assert _told(prompt_logprobs=form, **MARK, tells_beginning="vllm") == "<s>"
    assert _told(prompt_logprobs=form, **MARK, tells_beginning="llama_cpp") == "<s>"
    assert _told(prompt_logprobs=form, **MARK) == ""
    assert _told(prompt_logprobs=form, **MARK, tells_beginning="vllm", puts_beginning=True) is True
    assert _told(prompt_logprobs=form, tells_beginning="vllm") == "", (
        "<end>, which it reads as a part of a word"
    )


def test_files_tell_the_token_that_begins_texts_else_the_one_that_ends_them(tmp_path: Path) -> None:
    with pytest.raises(PlanError, match=r"has no tokenizer_config\.json"):
        special_tokens.read(tmp_path)
    (tmp_path / "special_tokens_map.json").write_text(
        '{"bos_token": "<b>", "eos_token": {"content": "<e>"}}'
    )
    assert special_tokens.beginning(special_tokens.read(tmp_path)) == "<b>"
    (tmp_path / "tokenizer_config.json").write_text('{"bos_token": null, "add_bos_token": false}')
    assert special_tokens.beginning(special_tokens.read(tmp_path)) == "<e>"
    assert special_tokens.beginning({}) == ""


def test_our_launchers_know_it_before_they_start() -> None:
    assert embedded.beginning(embedded.EmbeddedOptions()) == "<|end|>"
    assert simulated.beginning(simulated.SimulatedOptions(begins_with="<s>")) is None
    assert (
        simulated.beginning(simulated.SimulatedOptions(begins_with="<s>", tells_beginning="vllm"))
        == "<s>"
    )
    assert (
        simulated.beginning(
            simulated.SimulatedOptions(
                begins_with="<s>", tells_beginning="vllm", puts_beginning=True
            )
        )
        is True
    )


JUDGED = '''"""Judges how likely two choices are."""

from serve_eval.schema import Dataset, Hypothesis, Metric, Outcome, Sample, SamplingParams, Score, Task


def task(*, prefix: str | bool | None = None, context: str = "") -> Task:
    sample = Sample(id="1", prompt=context, target="", choices=("Yes", "No"))
    return Task(
        name="judged",
        version=1,
        reference_file="judged",
        metric=Metric(),
        hypothesis=Hypothesis(num_samples=1),
        sampling=SamplingParams(max_tokens=1),
        prompt_logprobs=True,
        protocol={"prefix": prefix or ""},
        load=lambda roots, wanted: Dataset(samples=[sample], files=(), total=1),
        score=lambda sample, response: Score(value=1.0, outcome=Outcome.CORRECT),
        answers=lambda sample: ("Yes", "No"),
    )
'''  # noqa: E501


def test_a_plan_has_it_before_its_endpoint_starts(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The plan's token has the highest priority.

    A tokenizer takes precedence over the mark of a server, and a server that adds its own over the
    tokenizer.
    """
    (tmp_path / "tasks").mkdir()
    (tmp_path / "tasks/judged.py").write_text(JUDGED)
    (tmp_path / "tokenizer_config.json").write_text('{"bos_token": "<b>"}')
    extensions.include((str(tmp_path),))

    def prefix_of(launcher: dict[str, Any], **options: Any) -> object:
        plan = Plan(
            model="m",
            launcher=Spec(name="simulated", options=launcher),
            tasks=(Spec(name="judged", options=options),),
        )
        return (
            asyncio.run(settle_prefixes(plan, tmp_path / "out", {})).tasks[0].options.get("prefix")
        )

    tells, puts = {**MARK, "tells_beginning": "vllm"}, {**MARK, "puts_beginning": True}
    assert prefix_of(tells) == "<s>"
    assert prefix_of(tells, tokenizer=str(tmp_path)) == "<b>"
    assert prefix_of(puts, tokenizer=str(tmp_path)) is True
    assert prefix_of({}) is None
    assert prefix_of(tells, context="Is it?") is None
    assert prefix_of(tells, prefix="") == ""


def _task(prefix: str | bool, *samples: Sample) -> PreparedTask:
    p = prepared(prompt_logprobs=True)
    task = replace(p.task, protocol={"prefix": prefix})
    return replace(p, task=task, dataset=Dataset(samples=samples, files=(), total=len(samples)))


def test_first_tokens_that_are_left_out_or_have_two_before_them_are_remarked_on() -> None:
    whole, begun = (
        Sample(id="1", prompt="All.", target=""),
        Sample(id="1", prompt="<s>", target="", choices=("All.",)),
    )
    choice = Sample(id="1", prompt="Is it?", target="", choices=("Yes", "No"))
    generated = replace(
        _task("", whole), task=replace(_task("", whole).task, prompt_logprobs=False)
    )
    puts, none = (Ability(need=Need.FIRST_TOKEN, works=works, seen="") for works in (True, False))
    assert "the first token of each text is left out" in remarks([_task("", whole)], [none])[0]
    named = f"--set {_task('', whole).task.name}.tokenizer=DIR"
    assert named in remarks([_task("", whole)], [none])[0], (
        "--tokenizer is refused with tasks that generate"
    )
    assert "two tokens begin each text" in remarks([_task("<s>", begun)], [puts])[0]
    for one, found in (
        (_task("", whole), [puts]),
        (_task("<s>", begun), [none]),
        (_task("", choice), [none]),
        (_task("<s>", choice), [puts]),
        (_task("", whole), []),
        (generated, [none]),
    ):
        assert remarks([one], found) == []


def test_a_choice_that_nothing_stands_before_needs_a_first_token() -> None:
    bare = Sample(id="1", prompt="", target="", choices=("Yes", "No"))
    assert Need.FIRST_TOKEN in _task("", bare).needs
    assert Need.FIRST_TOKEN in _task("", replace(bare, heads=("Is it?", ""))).needs
    assert Need.FIRST_TOKEN not in _task("", replace(bare, heads=("Is it?", "So?"))).needs
    assert Need.FIRST_TOKEN not in _task("<s>", replace(bare, prompt="<s>")).needs
