"""Test that missing abilities of an endpoint are reported before a task and never scored."""

import asyncio
import json
from dataclasses import replace

import pytest

from serve_eval.client.client import Client
from serve_eval.datasets import small_media
from serve_eval.errors import EndpointError
from serve_eval.evaluation.capabilities import (
    CONTEXT,
    is_blank_json,
    probe,
    warn_of_guided_decoding,
)
from serve_eval.evaluation.evaluate import evaluate, judge_again
from serve_eval.launchers._simulated.simulator import SimulatorConfig, create_app
from serve_eval.schema import (
    Dataset,
    Endpoint,
    Hypothesis,
    ImagePart,
    ImageUrl,
    Limits,
    Message,
    Metric,
    Need,
    Outcome,
    Override,
    Plan,
    Sample,
    SamplingParams,
    Score,
    Spec,
    Task,
    VerdictOutcome,
)
from tests.made_results import make_prepared
from tests.scripted_server import (
    EVERY_PATH,
    ScriptedServer,
    answer,
    fail,
    json_reply,
    serve,
)

CHAT = (Message(role="user", content="Hi"),)
PICTURE = (
    Message(
        role="user", content=(ImagePart(image_url=ImageUrl(url="data:image/png;base64,AA==")),)
    ),
)
SOUND = (Message(role="user", content=(small_media.number(),)),)
SOUND_BY_URL = (Message(role="user", content=(small_media.number("audio_url"),)),)
VIDEO = (Message(role="user", content=(small_media.dot(),)),)
GUIDED = {"response_format": {"type": "json", "schema": {"type": "object"}}}
OPENAI_GUIDED = {
    "response_format": {"type": "json_schema", "json_schema": {"name": "x", "schema": {}}}
}
QUICK = Limits(stall_timeout_s=20.0, connect_timeout_s=10.0, sample_timeout_s=40.0, max_attempts=2)


def _load(roots, wanted):
    raise NotImplementedError


def _score(sample, response):
    return Score(value=0.0, outcome=Outcome.WRONG)


def prepared(name="t", prompt="Hi", **more):
    task = Task(
        name=name,
        version=1,
        reference_file=name,
        metric=Metric(),
        hypothesis=Hypothesis(num_samples=1),
        sampling=SamplingParams(max_tokens=50),
        load=_load,
        answers=lambda sample: ("1", "0"),
        **{"score": _score, "protocol": {}, **more},
    )
    return make_prepared(
        task,
        Dataset(samples=[Sample(id="1", prompt=prompt, target="")], files=(), total=1),
        spec=Spec(name=name),
        hypothesis=Hypothesis(num_samples=1),
    )


def _probe(server, *tasks, model="simulated"):
    async def main():
        async with (
            serve(server) as url,
            Client(Endpoint(base_url=url, model=model), QUICK) as client,
        ):
            found, lacking = await probe(client, tasks)
            return {one.need: one for one in found}, lacking, client

    return asyncio.run(main())


def _simulated(*tasks, **config):
    return _probe(create_app(SimulatorConfig(**config)), *tasks)


def test_what_works_is_found_out_and_nothing_else_is_asked():
    found, lacking, _ = _simulated(prepared())
    assert set(found) == {"completions"}
    assert not lacking


@pytest.mark.parametrize(
    ("config", "p", "need"),
    [
        ({"no_chat": True}, prepared(prompt=CHAT), "chat"),
        ({"no_completions": True}, prepared(), "completions"),
        ({}, prepared(prompt_logprobs=True), "prompt log-probabilities"),
        ({"no_images": True}, prepared(prompt=PICTURE), "images"),
        ({"no_audio": True}, prepared(prompt=SOUND), "sounds"),
        ({"no_video": True}, prepared(prompt=VIDEO), "videos"),
        (
            {"no_guided": True},
            prepared(requires=frozenset({Need.GUIDED_DECODING}), extra=GUIDED),
            "guided decoding",
        ),
        ({"no_tools": True}, prepared(prompt=CHAT, requires=frozenset({Need.TOOLS})), "tool calls"),
        ({}, prepared(requires=frozenset({Need.TOKENS_PER_STEP})), "tokens per step"),
        ({"context_tokens": 400}, prepared(context_tokens=500), CONTEXT),
    ],
)
def test_what_an_endpoint_lacks_is_named_with_what_would_help(config, p, need):
    other = prepared("other", prompt=CHAT if need == "completions" else "Hi")
    found, lacking, _ = _simulated(p, other, **config)
    assert set(lacking) == {"t"}
    assert (lacking["t"].need, lacking["t"].works) == (need, False)
    assert lacking["t"].seen
    assert lacking["t"].help
    assert found[need].works is False


@pytest.mark.parametrize(
    ("config", "p", "need"),
    [
        (
            {"tokens_per_step": 2.5},
            prepared(requires=frozenset({Need.TOKENS_PER_STEP})),
            "tokens per step",
        ),
        (
            {"tokens_per_step": 2.5},
            prepared(prompt=CHAT, requires=frozenset({Need.TOKENS_PER_STEP})),
            "tokens per step",
        ),
        ({}, prepared(prompt=PICTURE), "images"),
        ({}, prepared(prompt=SOUND), "sounds"),
        ({}, prepared(prompt=VIDEO), "videos"),
        ({}, prepared(prompt=CHAT, requires=frozenset({Need.TOOLS})), "tool calls"),
        ({}, prepared(requires=frozenset({Need.GUIDED_DECODING}), extra=GUIDED), "guided decoding"),
        (
            {},
            prepared(prompt=CHAT, requires=frozenset({Need.GUIDED_DECODING}), extra=OPENAI_GUIDED),
            "guided decoding",
        ),
    ],
)
def test_what_it_can_do_is_seen_by_what_comes_back(config, p, need):
    found, lacking, _ = _simulated(p, **config)
    assert found[need].works is True
    assert not lacking


def test_no_answer_of_no_tokens_is_ever_asked_for():
    # trtllm-serve refuses it; an old one crashed.
    server = _everywhere(FOUR)
    _, lacking, _ = _probe(server, prepared(prompt_logprobs=True))
    assert set(lacking) == {"t"}
    asked = [request.body["max_tokens"] for request in server.asked if request.method == "POST"]
    assert len(asked) > 2
    assert min(asked) >= 1


@pytest.mark.parametrize("form", ["echo", "prompt_logprobs"])
def test_the_form_that_gives_log_probabilities_is_found_and_kept(form):
    found, lacking, client = _simulated(prepared(prompt_logprobs=True), prompt_logprobs=form)
    assert client.logprobs_form == form
    assert found[Need.PROMPT_LOGPROBS].seen == f"{form}: 8 of 9 tokens, with places"
    assert not lacking


@pytest.mark.parametrize("wanted", [200, None])
def test_a_context_that_is_long_enough_or_of_unknown_length_is_gone_on_with(
    wanted,
):
    found, lacking, _ = _simulated(prepared(context_tokens=500), context_tokens=wanted and 1000)
    assert not lacking
    assert found[CONTEXT].works is None  # a server that refuses nothing proves nothing


# ------------------------------------------------------------------------------------------ servers
# of other kinds

FOUR = answer("4", usage=(9, 1))


def _everywhere(responder):
    """Serve the same reply on every path, including the list of models."""
    return ScriptedServer(responder, paths=EVERY_PATH)


@pytest.mark.parametrize(
    ("prompt", "kind"), [(PICTURE, "image"), (SOUND, "sound"), (VIDEO, "video")]
)
def test_a_server_that_drops_media_in_silence_is_caught_by_its_token_count(prompt, kind):
    _, lacking, _ = _probe(_everywhere(FOUR), prepared(prompt=prompt))
    assert lacking["t"].seen == f"the {kind} was ignored: 9 tokens with it, 9 without"


@pytest.mark.parametrize(
    ("prompt", "form"), [(SOUND, "input_audio"), (SOUND_BY_URL, "audio_url"), (VIDEO, "video_url")]
)
def test_a_medium_is_tried_in_the_form_that_the_task_sends(prompt, form):
    server = _everywhere(FOUR)
    _probe(server, prepared(prompt=prompt))
    assert server.asked[-1].body["messages"][0]["content"][0]["type"] == form


def test_a_sample_other_than_the_first_can_need_media():
    p = prepared(prompt=CHAT)
    samples = [Sample(id=str(n), prompt=one, target="") for n, one in enumerate((CHAT, VIDEO))]
    assert replace(p, dataset=replace(p.dataset, samples=samples)).needs == {Need.CHAT, Need.VIDEO}


def test_a_server_that_counts_no_tokens_is_asked_all_the_same():
    found, lacking, _ = _probe(_everywhere(answer("4", usage=(0, 1))), prepared(prompt=PICTURE))
    assert found[Need.IMAGES].works is None
    assert not lacking


@pytest.mark.parametrize(
    ("told", "works"),
    [
        ({"tokens": ["The quick brown fox jumps over the lazy", " dog", "."]}, True),
        ({"text_offset": [0, 39, 43]}, True),
        ({}, False),
    ],
)
def test_log_probabilities_of_tokens_that_nothing_places_tell_of_no_choice(told, works):
    echo = {"logprobs": {"token_logprobs": [None, -1.0, -2.0], **told}}
    server = _everywhere(answer("x", finish="length", choice=echo, usage=(3, 0)))
    p = prepared(prompt_logprobs=True)
    sample = Sample(id="1", prompt="Hi", target="", choices=(" a", " b"))
    choosing = replace(p, dataset=replace(p.dataset, samples=[sample]))
    found, lacking, _ = _probe(server, choosing)
    assert found[Need.PROMPT_LOGPROBS].works is True
    assert found[Need.CONTINUATION_LOGPROBS].works is works
    assert bool(lacking) is not works


def test_a_model_without_a_chat_template_lacks_chat():
    message = "default chat template is no longer allowed, so you must provide a chat template"
    server = _everywhere(lambda request: fail(400, message) if request.chat else FOUR)
    _, lacking, _ = _probe(server, prepared(prompt=CHAT))
    assert lacking["t"].need == "chat"


def test_the_length_that_models_lists_counts():
    vllm = json_reply({"data": [{"id": "simulated", "max_model_len": 4096}]})
    server = ScriptedServer(FOUR, paths=EVERY_PATH, routes={"/v1/models": vllm})
    found, lacking, _ = _probe(
        server, prepared(context_tokens=5000), prepared("short", context_tokens=4096)
    )
    assert set(lacking) == {"t"}
    assert "takes 4096 tokens" in lacking["t"].seen
    assert found[CONTEXT].seen == "4096 tokens"


@pytest.mark.parametrize(
    "message",
    [
        (
            "max_tokens is too large: 9000. This model's maximum context length is 4096 tokens and"
            " you asked for 9006."
        ),
        "prompt length plus max_tokens (9006) exceeds max_seq_len (4096)",
        "The context window of 4096 tokens is exceeded",
    ],
)
def test_the_length_that_a_refusal_names_counts(message):
    server = ScriptedServer(
        lambda request: fail(400, message) if request.max_tokens >= 4096 else FOUR
    )
    _, lacking, _ = _probe(server, prepared(context_tokens=9000))
    assert "takes 4096 tokens" in lacking["t"].seen


def test_an_answer_that_was_cut_says_nothing_of_guided_decoding():
    p = prepared(requires=frozenset({Need.GUIDED_DECODING}), extra=GUIDED)
    found, lacking, _ = _probe(_everywhere(answer("<think>hm", finish="length", usage=(9, 1))), p)
    assert found[Need.GUIDED_DECODING].works is None
    assert not lacking


# ----------------------------------------------------------------------------------------------------  # noqa: E501
# two forms of a schema

FOLLOWED = answer('{"word": "violet"}', usage=(9, 5))
NO_SUCH_FORM = fail(
    400,
    "1 validation error:\n  {'type': 'literal_error', 'loc': 'body.response_format.type', 'msg':"
    " \"Input should be 'text', 'json_object' or 'json_schema'\", 'input': 'json'}",
)
BLANKS = answer('{"word": ' + "\n" * 250, finish="length", usage=(9, 256))


def _guided_task(form, **more):
    """Return a task whose samples have their own schemas."""
    protocol = {"response_format": form["response_format"]["type"]}
    p = prepared(requires=frozenset({Need.GUIDED_DECODING}), **{"protocol": protocol, **more})
    own = [replace(p.dataset.samples[0], override=Override(extra=form))]
    return replace(p, dataset=replace(p.dataset, samples=own))


def _by_form(json, json_schema, owner=None):
    """Return a server that gives one reply to each form of a schema, and lists this owner."""
    replies = {"json": json, "json_schema": json_schema}

    def reply(request):
        form = request.body.get("response_format")
        return FOUR if form is None else replies[form["type"]]

    listed = json_reply({"data": [{"id": "simulated", "owned_by": owner}]})
    return ScriptedServer(reply, paths=EVERY_PATH, routes={"/v1/models": listed})


@pytest.mark.parametrize(
    ("server", "task", "seen", "option"),
    [
        (
            _by_form(NO_SUCH_FORM, FOLLOWED),
            GUIDED,
            "response_format json: HTTP 400: response_format.type: Input should be 'text',"
            " 'json_object' or 'json_schema'. The form json_schema works: a schema was followed",
            "--set t.response_format=json_schema.",
        ),
        (
            _by_form(FOLLOWED, FOUR),
            OPENAI_GUIDED,
            "response_format json_schema: the schema was ignored: '4'. The form json works: a"
            " schema was followed",
            "--set t.response_format=json.",
        ),
        (
            _by_form(NO_SUCH_FORM, BLANKS, "vllm"),
            GUIDED,
            "The form json_schema is accepted: the model wrote white space within the JSON",
            "--set t.response_format=json_schema.",
        ),
    ],
)
def test_a_form_that_fails_names_the_other_one_if_that_works(server, task, seen, option):
    found, lacking, _ = _probe(server, _guided_task(task))
    assert found[Need.GUIDED_DECODING].works is False
    assert seen in lacking["t"].seen
    assert lacking["t"].help.startswith(f"Use {option} The form is part of the protocol")
    assert "--allow-mismatch response_format" in lacking["t"].help
    assert ("disable_any_whitespace" in lacking["t"].help) is ("accepted" in seen)


def test_a_task_without_the_option_is_not_told_to_set_it():
    server = _by_form(NO_SUCH_FORM, FOLLOWED)
    _, lacking, _ = _probe(server, _guided_task(GUIDED, protocol={}))
    assert lacking["t"].help == "Send the schema in the form json_schema."


def test_two_forms_that_fail_are_both_reported():
    _, lacking, _ = _probe(_by_form(fail(400, "no"), FOUR), _guided_task(GUIDED))
    assert lacking["t"].seen == ("HTTP 400: no. The form json_schema: the schema was ignored: '4'")
    assert "guided decoding backend" in lacking["t"].help


def test_a_form_that_works_is_the_only_one_that_is_sent():
    server = _by_form(FOLLOWED, FOUR)
    found, lacking, _ = _probe(server, _guided_task(GUIDED))
    assert found[Need.GUIDED_DECODING].works is True
    assert not lacking
    forms = [body["response_format"]["type"] for body in server.bodies if "response_format" in body]
    assert forms == ["json"]


@pytest.mark.parametrize(
    ("owner", "vllm"), [("vllm", True), (None, True), ("tensorrt_llm", False), ("llamacpp", False)]
)
def test_white_space_without_end_is_recognised_and_the_option_named_for_its_server(owner, vllm):
    found, lacking, _ = _probe(_by_form(BLANKS, BLANKS, owner), _guided_task(GUIDED))
    told = found[Need.GUIDED_DECODING]
    assert (told.works, lacking) == (None, {})
    assert told.seen == "the model wrote white space within the JSON until max_tokens"
    assert ("--structured-outputs-config" in told.help) is vllm
    assert ("only max_tokens ends it" in told.help) is not vllm
    assert warn_of_guided_decoding(list(found.values())) == [
        f"guided decoding: {told.seen}. {told.help}"
    ]


async def test_a_run_warns_of_white_space_before_it_asks(tmp_path, data_root):
    said = []
    async with serve(_by_form(BLANKS, BLANKS, "vllm")) as url:
        plan = Plan(
            model="simulated",
            launcher=Spec(name="external", options={"base_url": url}),
            tasks=(Spec(name="json_mode_eval"),),
            dataset_roots=(str(data_root),),
            limit=2,
            no_reference=True,
        )
        report = await evaluate(plan, tmp_path / "out", notify=said.append)
    [warning] = [line for line in said if "guided decoding" in line]
    assert warning.startswith("warning: guided decoding: the model wrote white space")
    assert "disable_any_whitespace" in warning
    assert report.tasks[0].result.truncated == 2


@pytest.mark.parametrize(
    ("text", "blank"),
    [
        ('{"word": ' + " \n" * 20, True),
        ("\t" * 40, True),
        ("[" + " " * 40 + "1", True),
        ('{"word": "a b c', False),
        ('{"word": ' + " " * 20, False),
        ("A table:" + " " * 60, False),
    ],
)
def test_which_cut_answers_are_blank_json(text, blank):
    assert is_blank_json(text) is blank


# ----------------------------------------------------------------------------------------------------  # noqa: E501
# samples that do not fit


def _context(tokens):
    """Return a server that reports its context and refuses what does not fit.

    A character is a token.
    """

    def reply(request):
        length = len(request.body["prompt"]) + request.max_tokens
        if length <= tokens:
            return FOUR
        return fail(400, f"This model's maximum context length is {tokens} tokens, not {length}.")

    listed = json_reply({"data": [{"id": "simulated", "max_model_len": tokens}]})
    return ScriptedServer(reply, paths=EVERY_PATH, routes={"/v1/models": listed})


def _of_lengths(*lengths):
    p = prepared()
    samples = [Sample(id=f"{n}", prompt="a" * n, target="") for n in lengths]
    return replace(p, dataset=replace(p.dataset, samples=samples))


def test_a_task_of_which_no_sample_fits_is_not_asked_sample_by_sample():
    server = _context(600)
    found, lacking, _ = _probe(server, _of_lengths(3000, 2000))
    assert lacking["t"].need == CONTEXT
    assert lacking["t"].seen == (
        "the endpoint takes 600 tokens, and not even the shortest prompt of the task fits: HTTP"
        " 400: This model's maximum context length is 600 tokens, not 2050."
    )
    assert "longer context" in lacking["t"].help
    assert found[CONTEXT].works is False
    # one short request, and the shortest sample
    assert [len(body["prompt"]) for body in server.bodies] == [7, 2000]
    assert server.bodies[-1]["stop"]  # an answer would end at once


@pytest.mark.parametrize(
    ("context", "lengths", "asked"),
    [
        (600, (40, 3000), 1),  # too short for a doubt
        (2000, (1800, 9000), 1),  # fits by the length of its text
        (700, (1400,), 2),  # does not, and is answered, since this server counts words
    ],
)
def test_a_sample_that_fits_is_doubted_at_most_once(context, lengths, asked):
    server = ScriptedServer(
        FOUR,
        paths=EVERY_PATH,
        routes={"/v1/models": json_reply({"data": [{"id": "m", "max_model_len": context}]})},
    )
    _, lacking, _ = _probe(server, _of_lengths(*lengths))
    assert not lacking
    assert len(server.bodies) == asked


@pytest.mark.parametrize(
    ("text", "finish", "tokens", "works", "seen"),
    [
        (
            '<tool_call>{"name": "write_down", "arguments": {"word": "violet"}}',
            "stop",
            30,
            False,
            "came as text",
        ),
        ("I cannot do that.", "stop", 30, None, "answered without a call"),
        (
            "I cannot do that.",
            "stop",
            9,
            False,
            "the tool was ignored: 9 tokens with it, 9 without",
        ),
        ("<think>hm", "length", 30, None, "the answer ended within the model's thoughts"),
    ],
)
def test_what_came_instead_of_a_call_tells_why(text, finish, tokens, works, seen):
    def reply(request):
        return answer(text, finish=finish, usage=(tokens if "tools" in request.body else 9, 1))

    found, lacking, _ = _probe(
        _everywhere(reply), prepared(prompt=CHAT, requires=frozenset({Need.TOOLS}))
    )
    assert found[Need.TOOLS].works is works
    assert seen in found[Need.TOOLS].seen
    assert bool(lacking) is (works is False)
    assert works is not False or "--tool_parser" in lacking["t"].help


def test_a_server_that_refuses_tools_lacks_them():
    refusal = fail(400, '"auto" tool choice needs --enable-auto-tool-choice')
    server = _everywhere(lambda request: refusal if "tools" in request.body else FOUR)
    _, lacking, _ = _probe(server, prepared(prompt=CHAT, requires=frozenset({Need.TOOLS})))
    assert "auto" in lacking["t"].seen


def test_what_is_busy_for_a_moment_does_not_lack_anything():
    busy = iter(
        [fail(429, "busy", {"Retry-After": "0"}), answer('{"word": "violet"}', usage=(9, 1))]
    )
    server = _everywhere(lambda request: next(busy) if "response_format" in request.body else FOUR)

    p = prepared(requires=frozenset({Need.GUIDED_DECODING}))
    per_sample = [replace(p.dataset.samples[0], override=Override(extra=GUIDED))]
    found, _, _ = _probe(server, replace(p, dataset=replace(p.dataset, samples=per_sample)))
    assert found[Need.GUIDED_DECODING].works is True
    assert sum("response_format" in body for body in server.bodies) == 2


@pytest.mark.parametrize("status", [404, 401])
def test_where_nothing_is_answered_at_all_the_run_stops(status):
    with pytest.raises(EndpointError, match=f"HTTP {status}"):
        _probe(_everywhere(fail(status, "no")), prepared(), prepared("c", prompt=CHAT))


# ----------------------------------------------------------------------------------------------------  # noqa: E501
# a whole run


def _run(tmp_path, data_root, **config):
    plan = Plan(
        model="simulated",
        launcher=Spec(name="simulated", options={"accuracy": 1.0, **config}),
        tasks=(Spec(name="gsm8k", options={"apply_chat_template": True}), Spec(name="mmlu")),
        dataset_roots=(str(data_root),),
        limit=20,
        no_reference=True,
    )
    return asyncio.run(evaluate(plan, tmp_path / "out"))


def test_a_task_that_cannot_be_asked_gets_an_outcome_of_its_own_and_the_others_go_on(
    tmp_path, data_root
):
    report = _run(tmp_path, data_root, no_chat=True)
    gsm8k, mmlu = report.tasks
    assert gsm8k.verdict.outcome is VerdictOutcome.UNSUPPORTED
    assert gsm8k.verdict.reasons[0].startswith("unsupported: the endpoint lacks chat: HTTP 404")
    assert (gsm8k.result.value, gsm8k.result.failed, gsm8k.result.spared) == (None, 0, 20)
    assert gsm8k.verdict.evaluated is None
    assert gsm8k.traffic.attempts == 0
    assert (mmlu.verdict.outcome, mmlu.result.value) == (VerdictOutcome.NO_REFERENCE, 100.0)
    assert report.exit_code == 3
    [session] = json.loads((tmp_path / "out/environment.json").read_text())
    assert [(one["need"], one["works"]) for one in session["abilities"]] == [
        ("completions", True),
        ("chat", False),
    ]
    assert set(session["unsupported"]) == {"gsm8k"}
    again = judge_again(report.plan, tmp_path / "out")
    assert [task.verdict for task in again.tasks] == [task.verdict for task in report.tasks]
