"""Test lm-eval's requests as samples of ours, without lm-eval."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from serve_eval.errors import PlanError
from serve_eval.harness.instances import (
    as_messages,
    as_text,
    build_generated,
    build_judged,
    build_rolled,
    read_sampling,
    split_continuation,
)
from serve_eval.schema import Message, Override, SamplingParams

ABOUT = {"id": "0", "target": "t"}


def _instance(*args: Any) -> SimpleNamespace:
    return SimpleNamespace(args=args)


@pytest.mark.parametrize(
    ("given", "sampling", "rest"),
    [
        ({}, SamplingParams(max_tokens=256), {}),
        ({"until": "\n", "max_gen_toks": 8}, SamplingParams(max_tokens=8, stop=("\n",)), {}),
        (
            {"until": ["a", "b"], "do_sample": False},
            SamplingParams(max_tokens=256, stop=("a", "b")),
            {},
        ),
        (
            {
                "do_sample": True,
                "temperature": 0.7,
                "top_p": 0.9,
                "top_k": 5,
                "max_tokens": 9,
                "max_gen_toks": 8,
            },
            SamplingParams(max_tokens=9, temperature=0.7, top_p=0.9),
            {"top_k": 5},
        ),
        (
            {"temperature": None, "seed": 3, "until": None},
            SamplingParams(max_tokens=256, seed=3),
            {},
        ),
        ({"top_p": None}, SamplingParams(max_tokens=256), {}),
        ({"until": ["", "Q"]}, SamplingParams(max_tokens=256, stop=("Q",)), {}),
        ({"until": ""}, SamplingParams(max_tokens=256), {}),
    ],
)
def test_generation_kwargs_are_read_as_lm_evals_api_model_reads_them(
    given: dict[str, Any], sampling: SamplingParams, rest: dict[str, Any]
) -> None:
    assert read_sampling(given) == (sampling, rest)
    assert read_sampling(dict(given)) == (
        sampling,
        rest,
    ), "objects that a task shares are not changed"


def test_white_space_before_a_continuation_belongs_to_it_and_a_prefix_stands_for_no_context() -> (
    None
):
    assert split_continuation("Is it? ", "Yes", "") == ("Is it?", " Yes")
    assert split_continuation("Is it?", " Yes", "<s>") == ("Is it?", " Yes")
    assert split_continuation("", "Yes", "<s>") == ("<s>", "Yes")
    assert split_continuation("", "<s>Yes", "<s>") == (
        "<s>",
        "Yes",
    ), "lm-eval does not add it twice"
    assert split_continuation("", "Yes", "") == split_continuation("", "Yes", True) == ("", "Yes")


def test_choices_of_one_context_and_of_several() -> None:
    same = build_judged([_instance("Q:", " A"), _instance("Q:", " B")], "", **ABOUT)
    assert (same.prompt, same.choices, same.heads) == ("Q:", (" A", " B"), ())
    several = build_judged(
        [
            _instance("The cup, since the cup", " was big"),
            _instance("The cup, since the tea", " was big"),
        ],
        "",
        **ABOUT,
    )
    assert several.continued == (
        ("The cup, since the cup", " was big"),
        ("The cup, since the tea", " was big"),
    )
    prior = build_judged([_instance("Q:", " A"), _instance("", " A")], "<s>", **ABOUT)
    assert prior.continued == (("Q:", " A"), ("<s>", " A"))
    assert build_judged([_instance("", " A")], True, **ABOUT).continued == (("", " A"),)


def test_a_text_to_be_judged_stands_behind_a_prefix_where_there_is_one() -> None:
    assert build_rolled([_instance("All of it.")], "", **ABOUT).prompt == "All of it."
    assert build_rolled([_instance("All of it.")], "<s>", **ABOUT).continued == (
        ("<s>", "All of it."),
    )
    assert build_rolled([_instance("<s>All.")], "<s>", **ABOUT).continued == (
        ("<s>", "<s>All."),
    ), "lm-eval adds it twice"
    assert build_rolled([_instance("All of it.")], True, **ABOUT).continued == (("", "All of it."),)


def test_a_document_that_asks_otherwise_than_its_task_says_so() -> None:
    base = {"until": ["\n"], "temperature": 0.0}
    assert (
        build_generated([_instance("Q", dict(base))], base, multiturn=False, **ABOUT).override
        is None
    )
    other = build_generated(
        [_instance("Q", {"until": [], "temperature": 1.0, "max_gen_toks": 3, "top_k": 2})],
        base,
        multiturn=False,
        **ABOUT,
    )
    assert other.override == Override(max_tokens=3, stop=(), extra={"top_k": 2, "temperature": 1.0})
    with pytest.raises(PlanError, match="several answers"):
        build_generated(
            [_instance("Q", base), _instance("R", base)], base, multiturn=False, **ABOUT
        )


def test_turns_come_through_lm_eval_as_one_text() -> None:
    turns = [
        {"role": "system", "content": "Be brief."},
        {"role": "user", "content": 'A "quoted"\nline, é'},
    ]
    wanted = (
        Message(role="system", content="Be brief."),
        Message(role="user", content='A "quoted"\nline, é'),
    )
    assert as_messages(as_text(turns, add_generation_prompt=True)) == wanted
    sample = build_generated([_instance(as_text(turns), {})], {}, multiturn=True, **ABOUT)
    assert sample.prompt == wanted
