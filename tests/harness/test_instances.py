"""Test our side of lm-eval: its requests as samples, its logger and its absence."""

import logging
import subprocess
import sys
import threading
import warnings
from types import SimpleNamespace

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
from serve_eval.harness.library import quiet
from serve_eval.harness.measures import as_others_code
from serve_eval.protocol.shared import build_task
from serve_eval.schema import Message, Override, SamplingParams, Spec

ABOUT = {"id": "0", "target": "t"}


def _instance(*args):
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
def test_generation_kwargs_are_read_as_lm_evals_api_model_reads_them(given, sampling, rest):
    assert read_sampling(given) == (sampling, rest)
    assert read_sampling(dict(given)) == (
        sampling,
        rest,
    ), "objects that a task shares are not changed"


def test_white_space_before_a_continuation_belongs_to_it_and_a_prefix_stands_for_no_context():
    assert split_continuation("Is it? ", "Yes", "") == ("Is it?", " Yes")
    assert split_continuation("Is it?", " Yes", "<s>") == ("Is it?", " Yes")
    assert split_continuation("", "Yes", "<s>") == ("<s>", "Yes")
    assert split_continuation("", "<s>Yes", "<s>") == (
        "<s>",
        "Yes",
    ), "lm-eval does not add it twice"
    assert split_continuation("", "Yes", "") == split_continuation("", "Yes", True) == ("", "Yes")


def test_choices_of_one_context_and_of_several():
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


def test_a_text_to_be_judged_stands_behind_a_prefix_where_there_is_one():
    assert build_rolled([_instance("All of it.")], "", **ABOUT).prompt == "All of it."
    assert build_rolled([_instance("All of it.")], "<s>", **ABOUT).continued == (
        ("<s>", "All of it."),
    )
    assert build_rolled([_instance("<s>All.")], "<s>", **ABOUT).continued == (
        ("<s>", "<s>All."),
    ), "lm-eval adds it twice"
    assert build_rolled([_instance("All of it.")], True, **ABOUT).continued == (("", "All of it."),)


def test_a_document_that_asks_otherwise_than_its_task_says_so():
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


def test_turns_come_through_lm_eval_as_one_text():
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


WAIT_S = 0.1


def test_threads_that_overlap_leave_the_logger_and_the_warnings_as_they_were():
    logger, filters = logging.getLogger("lm_eval"), list(warnings.filters)
    entered, left, level = threading.Event(), threading.Event(), logger.level

    def first():
        with as_others_code(), quiet():
            entered.set()
            left.wait(WAIT_S)  # the second one arrives meanwhile, if it can
        left.set()

    def second():
        entered.wait()
        with as_others_code():
            left.wait(2 * WAIT_S)

    threads = [threading.Thread(target=one) for one in (first, second)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    try:
        assert (logger.level, list(warnings.filters)) == (level, filters)
    finally:
        logger.setLevel(level)
        warnings.filters[:] = filters


def test_without_lm_eval_the_extra_is_named(monkeypatch):
    monkeypatch.setitem(sys.modules, "lm_eval", None)
    with pytest.raises(PlanError, match=r"lm-eval is not installed") as caught:
        build_task(Spec(name="lm_eval:gsm8k"))
    assert "[lm-eval]" in caught.value.hint


def test_a_task_of_ours_imports_nothing_of_it():
    code = (
        "import sys, serve_eval.tasks.lm_eval; print({'lm_eval', 'datasets', 'torch'} &"
        " sys.modules.keys())"
    )
    told = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert told.stdout.strip() == "set()"
