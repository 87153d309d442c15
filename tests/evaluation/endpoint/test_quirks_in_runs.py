"""Test whole evaluations of servers with one quirk each.

Requests are streamed or not, sequential or sixteen at a time.
"""

import asyncio
from dataclasses import replace

import pytest

from serve_eval.errors import EndpointError
from serve_eval.evaluation.evaluate import evaluate
from serve_eval.evaluation.prepare import prepare
from serve_eval.schema import Limits, Plan, Spec
from tests.workflows.smoke.server import MODEL, Quirks, create

N = 24
WAYS = [
    Limits(concurrency=at_once, stream=stream) for at_once in (1, 16) for stream in (False, True)
]
SENT = {
    "model",
    "prompt",
    "messages",
    "max_tokens",
    "temperature",
    "top_p",
    "stop",
    "stream",
    "stream_options",
}
"""Fields that a strict server accepts."""


@pytest.fixture(autouse=True)
def _short_pauses(monkeypatch):
    monkeypatch.setattr("serve_eval.client.attempts.outcome.BASE_S", 0.001)


def _plan(task="word_problems", **more):
    options = {"num_samples": N, **more.pop("options", {})}
    return Plan(
        **{
            "model": MODEL,
            "launcher": Spec(name="external", options={"base_url": "http://127.0.0.1:1/v1"}),
            "tasks": (Spec(name=task, options=options),),
            "no_reference": True,
            **more,
        }
    )


def _knows(plan):
    """Return the right answer to each prompt, followed by another problem.

    A stop string of the task cuts off the second problem.
    """
    [prepared] = prepare(plan)
    return {
        _asked(one.prompt): f"{one.target}\n\nQuestion: and then?"
        for one in prepared.dataset.samples
    }


def _asked(prompt):
    asked = prompt if isinstance(prompt, str) else prompt[-1].content
    assert isinstance(asked, str)
    return asked


def _run(quirks, plan, folder):
    async def main():
        async with create(quirks).serve() as url:
            return await evaluate(_at(plan, url), folder, environ={})

    return asyncio.run(main())


def _at(plan, url):
    return replace(plan, launcher=Spec(name="external", options={"base_url": url}))


HANDLED = {
    "no [DONE]": {"names": {"no_done"}},
    "the stop text stays in": {"names": {"keeps_stop"}},
    "stop strings are ignored": {"names": {"ignores_stop"}},
    "carriage returns": {"names": {"carriage_returns"}},
    "an error first, in a stream of status 200": {"names": {"errs_first"}},
    "no /health": {"names": {"health_page"}},
    "an empty list of models": {"names": {"empty_models"}},
    "no list of models": {"names": {"models_500"}},
    "no usage in streams": {"names": {"no_stream_usage"}},
    "422 for fields that it does not know": {
        "refuses": lambda body: not set(body) <= SENT,
        "refusal": (422, {"detail": "Unexpected fields in the request: {'top_k'}"}),
    },
}


@pytest.mark.parametrize("quirk", HANDLED)
def test_a_quirk_costs_no_answer(quirk, tmp_path):
    settings = {"names": frozenset(), **HANDLED[quirk]}
    for number, limits in enumerate(WAYS):
        plan = _plan(limits=limits)
        [task] = _run(Quirks(knows=_knows(plan), **settings), plan, tmp_path / str(number)).tasks
        assert (task.result.value, task.result.scored, task.result.failed) == (100.0, N, 0), limits


def test_one_that_only_chats_is_asked_by_chat(tmp_path):
    """The server combines all known quirks of Xinference."""
    names = {
        "health_page",
        "no_version",
        "carriage_returns",
        "no_stream_usage",
        "one_choice",
        "no_logprobs",
    }
    for number, limits in enumerate(WAYS):
        plan = _plan(limits=limits, options={"apply_chat_template": True})
        quirks = Quirks(
            knows=_knows(plan), names=frozenset(names), errs=lambda body: "prompt" in body
        )
        [task] = _run(quirks, plan, tmp_path / str(number)).tasks
        assert (task.result.value, task.result.failed) == (100.0, 0), limits


def test_a_server_that_cuts_all_streams_but_the_newest_gives_no_wrong_answers(
    tmp_path,
):
    for number, limits in enumerate(WAYS):
        plan = _plan(limits=limits)
        quirks = Quirks(knows=_knows(plan), names=frozenset({"newest_stream_only"}))
        try:
            [task] = _run(quirks, plan, tmp_path / str(number)).tasks
        except EndpointError:  # so many answers were cut that the run gave up
            assert limits.stream
            assert limits.concurrency > 1
        else:
            assert (task.result.value, task.result.scored + task.result.failed) == (
                100.0,
                N,
            ), limits


def test_a_field_that_is_refused_is_named_before_anything_is_asked(tmp_path):
    plan = _plan(options={"extra_body": {"top_k": 1}})
    quirks = Quirks(knows=_knows(plan), **HANDLED["422 for fields that it does not know"])
    with pytest.raises(EndpointError) as told:
        _run(quirks, plan, tmp_path / "run")
    assert "422" in str(told.value)
    assert "top_k" in str(told.value.hint)
    assert [file.read_text() for file in (tmp_path / "run" / "samples").iterdir()] == [""]
