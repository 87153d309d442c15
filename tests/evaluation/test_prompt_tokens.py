"""Test the tokens of prompts: the one that begins a text, and how many fit.

Files and servers report it, and warnings say if it is missing.
"""

import asyncio
from dataclasses import replace

import pytest
from aiohttp import web

from serve_eval.client.client import Client
from serve_eval.errors import EndpointError, PlanError
from serve_eval.evaluation.capabilities import prompt_logprobs
from serve_eval.evaluation.evaluate import evaluate
from serve_eval.evaluation.prompt_lengths import keep_lengths
from serve_eval.evaluation.settle import ask_prefix, remarks, settle, settle_prefixes
from serve_eval.launchers import embedded, simulated
from serve_eval.launchers._simulated.simulator import STATS, SimulatorConfig, create_app, serve
from serve_eval.plan.command_line import write_take_command
from serve_eval.plugins import extensions
from serve_eval.protocol import chat_template
from serve_eval.protocol.shared import build_task
from serve_eval.schema import (
    Ability,
    DataRoots,
    Dataset,
    Endpoint,
    Limits,
    Message,
    Need,
    Plan,
    Sample,
    Spec,
)
from serve_eval.storage import run_folder
from tests.evaluation.test_capabilities import prepared

MARK = {"begins_with": "<s>"}


def _told(**server):
    async def asked():
        async with (
            serve(SimulatorConfig(**server)) as url,
            Client(Endpoint(base_url=url, model="simulated"), Limits()) as client,
        ):
            assert (await prompt_logprobs(client))[0].works
            return await ask_prefix(client, None, {})

    return asyncio.run(asked())


@pytest.mark.parametrize("form", ["echo", "prompt_logprobs"])
def test_what_an_endpoint_tells_is_used_where_it_is_one_token(form):
    assert _told(prompt_logprobs=form, **MARK, tells_beginning="vllm") == "<s>"
    assert _told(prompt_logprobs=form, **MARK, tells_beginning="llama_cpp") == "<s>"
    assert _told(prompt_logprobs=form, **MARK) == ""
    assert _told(prompt_logprobs=form, **MARK, tells_beginning="vllm", puts_beginning=True) is True
    assert _told(prompt_logprobs=form, tells_beginning="vllm") == "", (
        "<end>, which it reads as a part of a word"
    )


def test_files_tell_the_token_that_begins_texts_else_the_one_that_ends_them(tmp_path):
    with pytest.raises(PlanError, match=r"has no tokenizer_config\.json"):
        chat_template.read_special_tokens(tmp_path)
    (tmp_path / "special_tokens_map.json").write_text(
        '{"bos_token": "<b>", "eos_token": {"content": "<e>"}}'
    )
    assert chat_template.beginning(chat_template.read_special_tokens(tmp_path)) == "<b>"
    (tmp_path / "tokenizer_config.json").write_text('{"bos_token": null, "add_bos_token": false}')
    assert chat_template.beginning(chat_template.read_special_tokens(tmp_path)) == "<e>"
    assert chat_template.beginning({}) == ""


def test_our_launchers_know_it_before_they_start():
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


def test_a_plan_has_it_before_its_endpoint_starts(tmp_path, monkeypatch):
    """The plan's token has the highest priority.

    A tokenizer takes precedence over the mark of a server, and a server that adds its own over the
    tokenizer.
    """
    (tmp_path / "tasks").mkdir()
    (tmp_path / "tasks/judged.py").write_text(JUDGED)
    (tmp_path / "tokenizer_config.json").write_text('{"bos_token": "<b>"}')
    extensions.include((str(tmp_path),))

    def prefix_of(launcher, **options):
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


def _task(prefix, *samples):
    p = prepared(prompt_logprobs=True)
    task = replace(p.task, protocol={"prefix": prefix})
    return replace(p, task=task, dataset=Dataset(samples=samples, files=(), total=len(samples)))


def test_first_tokens_that_are_left_out_or_have_two_before_them_are_remarked_on():
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


def test_a_choice_that_nothing_stands_before_needs_a_first_token():
    bare = Sample(id="1", prompt="", target="", choices=("Yes", "No"))
    assert Need.FIRST_TOKEN in _task("", bare).needs
    assert Need.FIRST_TOKEN in _task("", replace(bare, heads=("Is it?", ""))).needs
    assert Need.FIRST_TOKEN not in _task("", replace(bare, heads=("Is it?", "So?"))).needs
    assert Need.FIRST_TOKEN not in _task("<s>", replace(bare, prompt="<s>")).needs


ASKED = {
    "kinds": ["niah_single_1", "fwe"],
    "lengths": [1024, 2048],
    "samples_per_cell": 2,
}


def plan_of(url, **options):
    """Return a plan that asks long_context of a running endpoint."""
    return Plan(
        model="simulated",
        launcher=Spec(name="external", options={"base_url": url}),
        tasks=(Spec(name="long_context", options={**ASKED, **options}),),
        no_reference=True,
    )


def fit_at(app, out, **options):
    """Return a plan that was fitted to an endpoint, and what the user read meanwhile."""
    lines = []

    async def fit():
        async with serve(app) as url:
            return await settle(plan_of(url, **options), out, {}, lines.append)

    return asyncio.run(fit()), lines


def with_route(tokens_per_word):
    """Return a simulated endpoint with vLLM's /tokenize, and the requests to it."""
    app, asked = create_app(SimulatorConfig()), []

    async def tokenize(request):
        body = await request.json()
        asked.append(body)
        tokens = [1] * (tokens_per_word * len(body["prompt"].split()))
        return web.json_response({"count": len(tokens), "tokens": tokens})

    app.router.add_post("/tokenize", tokenize)
    return app, asked


def longest(plan):
    """Return the most words of a prompt by its length."""
    [spec] = plan.tasks
    found = {}
    for sample in build_task(spec).load(DataRoots(), 100).samples:
        assert isinstance(sample.prompt, str)
        length = int(sample.metadata["length"])
        found[length] = max(found.get(length, 0), len(sample.prompt.split()))
    return found


def test_an_endpoint_without_a_route_counts_by_answers(tmp_path):
    app, looked_up = create_app(SimulatorConfig()), []

    async def refuse(request):
        looked_up.append(request)
        return web.json_response({"detail": "Not Found"}, status=404)

    app.router.add_post("/tokenize", refuse)
    plan, lines = fit_at(app, tmp_path / "out")
    assert len(looked_up) == 1
    options = plan.tasks[0].options
    assert options["lengths"] == [1024, 2048]
    sizes = options["sizes"]
    assert isinstance(sizes, dict)
    assert {name: len(one) for name, one in sizes.items()} == {"niah_single_1": 2, "fwe": 4}
    assert all(0.9 * length < words < length - 49 for length, words in longest(plan).items())
    assert app[STATS].requests
    assert lines == ["counting the tokens of the prompts of long_context at the endpoint"]


def test_a_route_that_only_tokenizes_counts_instead_of_answers(tmp_path):
    app, asked = with_route(2)
    plan, _ = fit_at(app, tmp_path / "out")
    assert asked
    assert app[STATS].requests.total() == 1, "only the question whether it answers"
    assert not any(body["return_token_strs"] for body in asked)
    assert all(0.85 * length < 2 * words < length - 49 for length, words in longest(plan).items())


def test_both_ways_of_counting_give_the_same_prompts(tmp_path):
    by_answers, _ = fit_at(create_app(SimulatorConfig()), tmp_path / "a")
    by_route, _ = fit_at(with_route(1)[0], tmp_path / "b")
    assert by_answers.tasks == by_route.tasks


def test_a_prompt_beyond_the_context_counts_as_too_long(tmp_path):
    plan, _ = fit_at(create_app(SimulatorConfig(context_tokens=900)), tmp_path / "out")
    assert all(700 < words < 900 for words in longest(plan).values())


def test_an_endpoint_that_counts_no_tokens_is_an_error(tmp_path):
    app = web.Application()

    async def answer(request):
        return web.json_response({"choices": [{"text": "a", "finish_reason": "length"}]})

    app.router.add_post("/v1/completions", answer)
    with pytest.raises(EndpointError, match="answers count no prompt tokens") as raised:
        fit_at(app, tmp_path / "out")
    assert "lengths and sizes" in raised.value.hint


def test_what_the_plan_has_is_not_counted(tmp_path):
    app = create_app(SimulatorConfig())
    sizes = {"niah_single_1": [9, 10], "fwe": [99, 100]}
    plan, lines = fit_at(app, tmp_path / "out", sizes=sizes)
    assert plan.tasks[0].options["sizes"] == sizes
    assert not app[STATS].requests
    assert not lines


async def test_a_resumed_run_keeps_its_prompts(tmp_path):
    """Even if the endpoint then counts otherwise."""
    out = tmp_path / "out"
    async with serve(SimulatorConfig(any_model=True)) as url:
        plan = plan_of(url)
        report = await evaluate(plan, out, environ={})
        assert (report.tasks[0].result.scored, report.tasks[0].result.failed) == (8, 0)
    saved = run_folder.read_plan(out)
    again = await settle(replace(plan, launcher=saved.launcher), out, {})
    assert "sizes" in saved.tasks[0].options
    assert again.tasks == saved.tasks


def test_launchers_count_before_their_servers_start(tmp_path):
    def fit(launcher, **options):
        plan = replace(plan_of("", **options), launcher=launcher)
        return asyncio.run(settle(plan, tmp_path / "out", {}))

    plan = fit(Spec(name="simulated"))
    assert all(0.9 * length < words < length - 49 for length, words in longest(plan).items())
    plan = fit(Spec(name="embedded"), kinds=["niah_single_1"], lengths=[512])
    assert plan.tasks[0].options["sizes"] == {"niah_single_1": [1]}
    options = embedded.EmbeddedOptions()
    assert embedded.count_tokens("12 34", options) == 5
    assert embedded.count_tokens((Message(role="user", content="12 34"),), options) > 5


def test_the_second_side_of_a_comparison_gets_the_prompts_of_the_first(tmp_path):
    first, _ = fit_at(create_app(SimulatorConfig()), tmp_path / "a")
    second = keep_lengths(plan_of("http://other"), first)
    assert second.tasks == first.tasks
    assert second.launcher != first.launcher


def test_commands_of_a_report_leave_the_counted_sizes_out(tmp_path):
    plan, _ = fit_at(create_app(SimulatorConfig()), tmp_path / "a")
    command = write_take_command(plan, ["long_context"])
    assert "long_context.lengths=[1024, 2048]" in command
    assert "sizes" not in command
