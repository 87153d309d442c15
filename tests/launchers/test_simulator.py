import asyncio
import math
import time
from contextlib import asynccontextmanager

import aiohttp
import jsonschema
import msgspec
import pytest

from serve_eval.launchers._simulated.answers import SAMPLED_ANSWERS, UNKNOWN_ANSWER
from serve_eval.launchers._simulated.simulator import (
    STATS,
    SimulatorConfig,
    create_app,
    serve,
)
from serve_eval.schema import Message
from serve_eval.schema.media import prompt_sha256

QUESTION = "What is 2 + 2?"
TURNS = (Message(role="system", content="Be brief."), Message(role="user", content=QUESTION))
RIGHT = " The answer is 4.\n\nQuestion: next"


def write_answers(path, entries, right=RIGHT, wrong=" It is 5."):
    lines = [
        {"sha256": prompt_sha256(prompt), "right": right, "wrong": wrong, "probability": p}
        for prompt, p in entries.items()
    ]
    path.write_bytes(b"".join(msgspec.json.encode(line) + b"\n" for line in lines))
    return path


@pytest.fixture
def answers(tmp_path):
    return write_answers(tmp_path / "answers.jsonl", {QUESTION: 1.0, TURNS: 1.0})


class Peer:
    """A running simulator and a client for it."""

    def __init__(self, session, base_url, app):
        self.session, self.base_url, self.app = session, base_url, app

    @property
    def stats(self):
        return self.app[STATS]

    async def raw(self, path="/completions", **body):
        """Return status, content type and body of one POST."""
        if path == "/completions":
            body = {"model": "simulated", "prompt": QUESTION, **body}
        else:
            turns = [{"role": turn.role, "content": turn.content} for turn in TURNS]
            body = {"model": "simulated", "messages": turns, **body}
        async with self.session.post(self.base_url + path, data=msgspec.json.encode(body)) as reply:
            return reply.status, reply.headers["Content-Type"], await reply.read()

    async def ask(self, path="/completions", **body):
        status, _, content = await self.raw(path, **body)
        return status, msgspec.json.decode(content)

    async def choice(self, path="/completions", **body):
        status, answer = await self.ask(path, **body)
        assert status == 200
        [choice] = answer["choices"]
        return choice

    async def text(self, prompt=QUESTION, **body):
        text = (await self.choice(prompt=prompt, **body))["text"]
        assert isinstance(text, str)
        return text


@asynccontextmanager
async def running(**options):
    app = create_app(SimulatorConfig(**options))
    timeout = aiohttp.ClientTimeout(total=10)
    async with serve(app) as base_url, aiohttp.ClientSession(timeout=timeout) as session:
        yield Peer(session, base_url, app)


def with_simulator(story, **options):
    async def tell():
        async with running(**options) as peer:
            await story(peer)

    asyncio.run(tell())


def texts(prompts, **options):
    """Return the answers of a simulator to many prompts, in batches of 100."""

    async def tell():
        async with running(**options) as peer:
            found = []
            for start in range(0, len(prompts), 100):
                _, answer = await peer.ask(prompt=prompts[start : start + 100])
                found += [choice["text"] for choice in answer["choices"]]
            return found

    return asyncio.run(tell())


# Answers


def test_a_completion_has_the_shape_of_trtllm_serve(answers):
    async def story(peer):
        status, answer = await peer.ask(max_tokens=50)
        assert status == 200
        assert answer["object"] == "text_completion"
        assert answer["id"].startswith("cmpl-")
        assert answer["model"] == "simulated"
        [choice] = answer["choices"]
        assert choice["text"] == RIGHT
        assert choice["finish_reason"] == "stop"
        assert choice["stop_reason"] is None
        assert answer["usage"] == {"prompt_tokens": 5, "completion_tokens": 6, "total_tokens": 11}

    with_simulator(story, answers=answers)


def test_a_chat_answer_is_found_by_roles_and_contents(answers):
    async def story(peer):
        status, answer = await peer.ask("/chat/completions", max_completion_tokens=50)
        assert status == 200
        assert answer["object"] == "chat.completion"
        [choice] = answer["choices"]
        assert choice["message"]["role"] == "assistant"
        assert choice["message"]["content"] == RIGHT
        assert answer["usage"]["prompt_tokens"] == 7
        swapped = [
            {"role": "user", "content": "Be brief."},
            {"role": "system", "content": QUESTION},
        ]
        assert (await peer.choice("/chat/completions", messages=swapped))["message"][
            "content"
        ] == UNKNOWN_ANSWER

    with_simulator(story, answers=answers)


def test_an_unknown_prompt_gets_a_sentence_that_says_so():
    async def story(peer):
        choice = await peer.choice(prompt="Never seen")
        assert (choice["text"], choice["finish_reason"]) == (UNKNOWN_ANSWER, "stop")

    with_simulator(story)


NODE = {
    "type": ["object"],
    "properties": {"next": {"anyOf": [{"$ref": "#/$defs/n"}, {"type": "null"}]}},
}
FOLLOWED = [
    {"type": "string", "minLength": 5, "maxLength": 5},
    {"type": ["integer"], "minimum": 7, "maximum": 9},
    {"type": "number", "maximum": -2},
    {"type": "array", "items": {"type": "boolean"}, "minItems": 3},
    {"oneOf": [{"type": "null"}, {"type": "string"}]},
    {"$ref": "#/$defs/n", "$defs": {"n": {**NODE, "required": ["next"]}}},
    {
        "type": "object",
        "properties": {"child": {"$ref": "#"}, "name": {"type": "string"}},
        "required": ["name"],
    },
    {
        "properties": {"a/b": {"$ref": "#/$defs/a~1b"}},
        "required": ["a/b"],
        "$defs": {"a/b": {"const": 4}},
    },
]


def test_an_unknown_prompt_follows_the_schema_that_comes_with_it():
    async def story(peer):
        for schema in FOLLOWED:
            parameters = {
                "properties": {"x": schema},
                "required": ["x"],
                "$defs": schema.get("$defs", {}),
            }
            form = {"type": "json_schema", "json_schema": {"name": "x", "schema": schema}}
            tools = [{"type": "function", "function": {"name": "f", "parameters": parameters}}]
            guided = await peer.choice("/chat/completions", response_format=form, max_tokens=100)
            called = await peer.choice("/chat/completions", tools=tools, max_tokens=100)
            text, [call] = guided["message"]["content"], called["message"]["tool_calls"]
            jsonschema.validate(msgspec.json.decode(text), schema)
            jsonschema.validate(msgspec.json.decode(call["function"]["arguments"]), parameters)

    with_simulator(story)


def test_an_unknown_prompt_is_sampled_by_the_seed_of_the_request():
    async def story(peer):
        seeds = range(60)
        sampled = [await peer.text("Unheard of.", temperature=1.0, seed=seed) for seed in seeds]
        assert sampled == [
            await peer.text("Unheard of.", temperature=1.0, seed=seed) for seed in seeds
        ]
        assert set(sampled) == set(SAMPLED_ANSWERS)
        assert await peer.text("Unheard of.", temperature=0, seed=3) == UNKNOWN_ANSWER

    with_simulator(story)


def test_a_list_of_prompts_gets_a_choice_each(answers):
    async def story(peer):
        _, answer = await peer.ask(prompt=[QUESTION, "Never seen"], max_tokens=3)
        assert [(c["index"], c["text"]) for c in answer["choices"]] == [
            (0, " The answer is"),
            (1, "I do not"),
        ]
        assert answer["usage"]["completion_tokens"] == 6

    with_simulator(story, answers=answers)


def test_max_tokens_counts_words_with_the_blanks_before_them(answers):
    async def story(peer):
        cut = await peer.choice(max_tokens=5)
        assert (cut["text"], cut["finish_reason"]) == (" The answer is 4.\n\nQuestion:", "length")
        whole = await peer.choice(max_tokens=6)
        assert (whole["text"], whole["finish_reason"]) == (RIGHT, "stop")

    with_simulator(story, answers=answers)


def test_sixteen_tokens_are_the_default(tmp_path):
    async def story(peer):
        assert len((await peer.text()).split()) == 16

    with_simulator(
        story, answers=write_answers(tmp_path / "a", {QUESTION: 1.0}, right="word " * 40)
    )


def test_the_earliest_stop_string_ends_the_text_and_is_left_out(answers):
    async def story(peer):
        choice = await peer.choice(stop=["Question:", "\n\n"], max_tokens=50)
        assert choice["text"] == " The answer is 4."
        assert (choice["finish_reason"], choice["stop_reason"]) == ("stop", "\n\n")
        assert await peer.text(stop="answer") == " The "
        beyond = await peer.choice(stop="Question:", max_tokens=2)
        assert (beyond["text"], beyond["finish_reason"]) == (" The answer", "length")

    with_simulator(story, answers=answers)


def _events(body):
    *events, done = [line.removeprefix(b"data: ").strip() for line in body.split(b"\n\n") if line]
    assert done == b"[DONE]"
    return [msgspec.json.decode(event) for event in events]


def test_a_stream_holds_the_words_the_finish_reason_and_the_usage(answers):
    async def story(peer):
        status, kind, body = await peer.raw(
            stream=True, stream_options={"include_usage": True}, max_tokens=50
        )
        assert (status, kind) == (200, "text/event-stream; charset=utf-8")
        *chunks, finish, usage = _events(body)
        assert len(chunks) == 6
        assert "".join(chunk["choices"][0]["text"] for chunk in chunks) == RIGHT
        assert {chunk["choices"][0]["finish_reason"] for chunk in chunks} == {None}
        assert finish["choices"][0]["finish_reason"] == "stop"
        assert usage["choices"] == []
        assert usage["usage"]["completion_tokens"] == 6
        _, _, body = await peer.raw(stream=True)
        assert _events(body)[-1]["choices"]

    with_simulator(story, answers=answers)


def test_a_chat_stream_begins_with_the_role(answers):
    async def story(peer):
        _, _, body = await peer.raw("/chat/completions", stream=True, stop="\n")
        role, *deltas, finish = [event["choices"][0] for event in _events(body)]
        assert role["delta"] == {"role": "assistant"}
        assert "".join(choice["delta"]["content"] for choice in deltas) == " The answer is 4."
        assert (finish["delta"], finish["finish_reason"], finish["stop_reason"]) == (
            {},
            "stop",
            "\n",
        )

    with_simulator(story, answers=answers)


def test_the_openai_sdk_understands_the_answers(answers):
    import openai  # takes two seconds, which other pytest workers need not wait

    async def story(peer):
        async with openai.AsyncOpenAI(
            base_url=peer.base_url, api_key="sk-sdk-test-key", max_retries=0
        ) as sdk:
            text = await sdk.completions.create(model="simulated", prompt=QUESTION, max_tokens=50)
            assert text.choices[0].text == RIGHT
            chat = await sdk.chat.completions.create(
                model="simulated",
                messages=[
                    {"role": "system", "content": "Be brief."},
                    {"role": "user", "content": QUESTION},
                ],
                stop=["\n"],
            )
            assert chat.choices[0].message.content == " The answer is 4."
            assert chat.usage is not None
            stream = await sdk.completions.create(model="simulated", prompt=QUESTION, stream=True)
            pieces = [chunk.choices[0] async for chunk in stream]
            assert "".join(piece.text for piece in pieces) == RIGHT
            assert pieces[-1].finish_reason == "stop"
            assert [model.id for model in (await sdk.models.list()).data] == ["simulated"]
            with pytest.raises(openai.NotFoundError, match="does not exist"):
                await sdk.completions.create(model="other", prompt=QUESTION)

    with_simulator(story, answers=answers, api_key="sk-sdk-test-key")


# Routes


def test_health_version_and_models():
    async def story(peer):
        root = peer.base_url.removesuffix("/v1")
        async with peer.session.get(root + "/health") as reply:
            assert (reply.status, await reply.read()) == (200, b"")
        async with peer.session.get(root + "/version") as reply:
            assert await reply.json() == {"version": "simulator"}
        async with peer.session.get(peer.base_url + "/models") as reply:
            assert [model["id"] for model in (await reply.json())["data"]] == ["a/b"]

    with_simulator(story, model="a/b")


def test_an_orchestrator_lists_no_models():
    async def story(peer):
        async with peer.session.get(peer.base_url + "/models") as reply:
            assert reply.status == 404

    with_simulator(story, no_models=True)


def test_a_missing_or_wrong_key_is_a_401_that_does_not_repeat_it(answers):
    async def story(peer):
        peer.session.headers["Authorization"] = "Bearer wrong-key"
        status, _, body = await peer.raw()
        assert status == 401
        assert b"right-key" not in body
        assert b"wrong-key" not in body
        async with peer.session.get(peer.base_url + "/models") as reply:
            assert reply.status == 401
        peer.session.headers["Authorization"] = "Bearer right-key"
        assert (await peer.ask())[0] == 200

    with_simulator(story, answers=answers, api_key="right-key")


# Refusals


@pytest.mark.parametrize(
    ("body", "said"),
    [
        ({"max_tokens": 0}, "must be greater than 0"),
        ({"n": 2}, "only n = 1"),
        ({"prompt": [1, 2]}, "token ids"),
        ({"prompt": [[1, 2]]}, "token ids"),
        ({"prompt": []}, "list index out of range"),
        ({"stream_options": {}}, "Stream options can only be defined"),
    ],
)
def test_what_cannot_be_answered_is_refused_in_the_form_of_a_worker(body, said):
    async def story(peer):
        status, answer = await peer.ask(**body)
        assert status == 400
        assert answer["object"] == "error"
        assert answer["type"] == "BadRequestError"
        assert answer["code"] == 400
        assert said in answer["message"]

    with_simulator(story)


@pytest.mark.parametrize(
    "body", [b"[]", b"{", b"{}", b'{"model": 1}', b'{"model": "simulated"}', b"\xff"]
)
def test_a_malformed_body_is_refused_in_the_form_of_a_validation(body):
    async def story(peer):
        for path in ("/completions", "/chat/completions"):
            async with peer.session.post(peer.base_url + path, data=body) as reply:
                assert reply.status == 400
                assert isinstance((await reply.json())["error"], str)

    with_simulator(story)


def test_an_unknown_model_is_a_404_unless_every_model_will_do():
    async def refused(peer):
        status, answer = await peer.ask(model="other")
        assert status == 404
        assert answer["error"]["code"] == "model_not_found"
        assert answer["error"]["param"] == "model"
        assert "other" in answer["error"]["message"]

    async def accepted(peer):
        assert (await peer.ask(model="other"))[0] == 200

    with_simulator(refused)
    with_simulator(accepted, any_model=True)


def test_unknown_fields_are_refused_only_when_strict():
    async def strict(peer):
        status, answer = await peer.ask(surprise=1)
        assert status == 400
        assert "surprise" in answer["error"]
        assert "Extra inputs are not permitted" in answer["error"]
        assert (await peer.ask(truncate_prompt_tokens=8, seed=1, temperature=0))[0] == 200
        assert (await peer.ask("/chat/completions", prompt="x"))[0] == 400

    async def lenient(peer):
        assert (await peer.ask(surprise=1))[0] == 200

    with_simulator(strict, strict_fields=True)
    with_simulator(lenient)


def test_a_prompt_beyond_the_context_is_refused_unless_it_is_truncated():
    async def story(peer):
        status, answer = await peer.ask(prompt="word " * 90, max_tokens=16)
        assert status == 400
        assert "maximum context length is 100 tokens" in answer["message"]
        assert (await peer.ask(prompt="word " * 84, max_tokens=16))[0] == 200
        assert (await peer.ask(prompt="word " * 90, max_tokens=16, truncate_prompt_tokens=84))[
            0
        ] == 200

    with_simulator(story, context_tokens=100)


# Chance


PROMPTS = [f"question {i}" for i in range(2000)]


@pytest.fixture(scope="module")
def even(tmp_path_factory):
    """Write answers that are right with probability 0.7."""
    path = tmp_path_factory.mktemp("even") / "answers"
    return write_answers(path, dict.fromkeys(PROMPTS, 0.7), right="right", wrong="wrong")


def test_the_measured_accuracy_is_the_declared_probability(even):
    share = texts(PROMPTS, answers=even).count("right") / len(PROMPTS)
    assert abs(share - 0.7) < 4 * math.sqrt(0.7 * 0.3 / len(PROMPTS))


def test_answers_depend_on_seed_and_run_and_on_nothing_else(even):
    first = texts(PROMPTS, answers=even, seed=1)
    assert texts(PROMPTS, answers=even, seed=1) == first
    for other in (
        texts(PROMPTS, answers=even, seed=2),
        texts(PROMPTS, answers=even, seed=1, run=1),
    ):
        flips = sum(a != b for a, b in zip(first, other, strict=True)) / len(PROMPTS)
        assert abs(flips - 0.42) < 4 * math.sqrt(0.42 * 0.58 / len(PROMPTS))


def test_certain_prompts_answer_alike_in_every_run(tmp_path):
    path = write_answers(tmp_path / "a", {"yes": 1.0, "no": 0.0}, right="right", wrong="wrong")
    assert {tuple(texts(["yes", "no"], answers=path, run=run)) for run in range(20)} == {
        ("right", "wrong")
    }


def test_more_damage_only_ever_adds_wrong_answers(even):
    before = texts(PROMPTS, answers=even)
    for damage in (0.1, 0.3, 0.9, 1.0):
        after = texts(PROMPTS, answers=even, damage=damage)
        assert all(b == "right" for a, b in zip(after, before, strict=True) if a == "right")
        share = 0.7 * (1 - damage)
        assert abs(after.count("right") / len(after) - share) <= 4 * math.sqrt(
            share * (1 - share) / len(after)
        )
        before = after


# Faults


@pytest.mark.parametrize(
    ("kind", "status", "content_type", "said"),
    [
        ("500", 500, "application/json", b'{"detail":"Internal server error'),
        ("429", 429, "application/json", b'"code":429'),
        ("503", 503, "text/plain", b"LLM is unavailable."),
        ("html", 200, "text/html", b"<!DOCTYPE html>"),
        ("empty_choices", 200, "application/json", b'"choices":[]'),
        ("null_content", 200, "application/json", b'"finish_reason":null'),
        (
            "wrapped_400",
            500,
            "application/json",
            b"Internal server error 400, message='Bad Request', url='http://lo",
        ),
        ("stream_without_finish", 200, "text/event-stream", b"data: "),
    ],
)
def test_a_failing_request_looks_as_declared(answers, kind, status, content_type, said):
    async def story(peer):
        for path in ("/completions", "/chat/completions"):
            got_status, got_type, body = await peer.raw(path)
            assert got_status == status
            assert got_type.startswith(content_type)
            assert said in body

    with_simulator(story, answers=answers, failure_rate=1.0, failure_kind=kind)


def test_an_overload_says_when_to_come_back(answers):
    async def story(peer):
        async with peer.session.post(
            peer.base_url + "/completions", json={"model": "simulated", "prompt": "x"}
        ) as r:
            assert r.headers["Retry-After"] == "0"

    with_simulator(story, answers=answers, failure_rate=1.0, failure_kind="429")


def test_null_content_is_null_in_both_kinds_of_answer(answers):
    async def story(peer):
        assert (await peer.choice())["text"] is None
        choice = await peer.choice("/chat/completions")
        assert choice["message"]["content"] is None
        assert choice["finish_reason"] is None

    with_simulator(story, answers=answers, failure_rate=1.0, failure_kind="null_content")


def test_bad_json_ends_in_the_middle(answers):
    async def story(peer):
        status, kind, body = await peer.raw()
        assert (status, kind) == (200, "application/json")
        with pytest.raises(msgspec.DecodeError):
            msgspec.json.decode(body)

    with_simulator(story, answers=answers, failure_rate=1.0, failure_kind="bad_json")


def test_a_stream_without_finish_never_says_why_it_ended(answers):
    async def story(peer):
        for stream in (False, True):
            _, _, body = await peer.raw(stream=stream)
            choices = [event["choices"][0] for event in _events(body)]
            assert "".join(choice["text"] for choice in choices) == RIGHT
            assert {choice["finish_reason"] for choice in choices} == {None}

    with_simulator(story, answers=answers, failure_rate=1.0, failure_kind="stream_without_finish")


def test_a_disconnect_closes_the_connection_without_an_answer(answers):
    async def story(peer):
        with pytest.raises(aiohttp.ClientConnectionError):
            await peer.raw()

    with_simulator(story, answers=answers, failure_rate=1.0, failure_kind="disconnect")


def test_a_hanging_request_ends_when_the_client_goes(answers):
    async def story(peer):
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(0.2):
                await peer.raw()
        for _ in range(100):
            if peer.stats.concurrent == 0:
                break
            await asyncio.sleep(0.01)
        assert peer.stats.concurrent == 0
        assert peer.stats.max_concurrent == 1

    with_simulator(story, answers=answers, failure_rate=1.0, failure_kind="hang")


async def test_the_server_ends_while_a_request_hangs(answers):
    async with aiohttp.ClientSession() as session:
        config = SimulatorConfig(answers=answers, failure_rate=1.0, failure_kind="hang")
        async with serve(config) as base_url:
            hanging = asyncio.ensure_future(
                session.post(base_url + "/completions", data=b'{"model":"simulated","prompt":"x"}')
            )
            await asyncio.sleep(0.1)
            began = time.monotonic()
        took = time.monotonic() - began
        with pytest.raises(aiohttp.ClientError):
            await hanging
        assert took < 3


def test_the_failing_prompts_are_a_share_chosen_by_seed_and_recover_when_told(even):
    async def failing(peer):
        prompts = PROMPTS[:300]
        replies = await asyncio.gather(*(peer.raw(prompt=prompt) for prompt in prompts))
        return {
            prompt for prompt, (status, _, _) in zip(prompts, replies, strict=True) if status == 500
        }

    async def story(peer):
        first = await failing(peer)
        assert abs(len(first) / 300 - 0.2) < 4 * math.sqrt(0.2 * 0.8 / 300)
        assert await failing(peer) == first
        assert await failing(peer) == set()
        assert peer.stats.requests[prompt_sha256(PROMPTS[0])] == 3

    async def other(peer):
        found.append(await failing(peer))

    found = []
    with_simulator(story, answers=even, failure_rate=0.2, failures_per_prompt=2)
    for seed in (0, 0, 1):
        with_simulator(other, answers=even, failure_rate=0.2, seed=seed)
    assert found[0] == found[1] != found[2]


def test_an_unknown_prompt_fails_only_when_everything_does(even):
    async def sound(peer):
        for i in range(50):
            assert (await peer.ask(prompt=f"unknown {i}"))[0] == 200

    async def broken(peer):
        assert (await peer.ask(prompt="unknown"))[0] == 500

    with_simulator(sound, answers=even, failure_rate=0.9)
    with_simulator(broken, answers=even, failure_rate=1.0)


def test_a_truncated_answer_has_half_of_its_words_and_says_so(answers):
    async def story(peer):
        choice = await peer.choice()
        assert (choice["text"], choice["finish_reason"]) == (" The answer is", "length")

    with_simulator(story, answers=answers, truncate_rate=1.0)


def test_an_empty_answer_is_a_text_of_no_characters(answers):
    async def story(peer):
        choice = await peer.choice()
        assert (choice["text"], choice["finish_reason"]) == ("", "stop")
        assert len(_events((await peer.raw(stream=True))[2])) == 1

    with_simulator(story, answers=answers, empty_rate=1.0)


def test_empty_and_truncated_answers_are_shares(even):
    found = texts(PROMPTS, answers=even, empty_rate=0.3)
    assert abs(found.count("") / len(found) - 0.3) < 4 * math.sqrt(0.3 * 0.7 / len(found))
    whole = texts(PROMPTS, answers=even)
    assert [b for a, b in zip(found, whole, strict=True) if a] == [a for a in found if a]


def test_requests_wait_for_the_latency_at_the_same_time(answers):
    async def story(peer):
        began = time.monotonic()
        await asyncio.gather(*(peer.ask() for _ in range(20)))
        assert 0.1 <= time.monotonic() - began < 1.0
        assert peer.stats.max_concurrent == 20
        assert peer.stats.concurrent == 0

    with_simulator(story, answers=answers, latency_s=0.1, latency_jitter_s=0.05)


@pytest.mark.parametrize(
    "bad",
    [
        {"damage": 1.5},
        {"failure_rate": -0.1},
        {"empty_rate": 2.0},
        {"latency_s": -1.0},
        {"crash_after": -1},
    ],
)
def test_values_out_of_range_are_refused(bad):
    with pytest.raises(ValueError, match=next(iter(bad))):
        SimulatorConfig(**bad)


def test_bodies_and_headers_are_kept_only_when_asked_for(answers):
    async def recording(peer):
        await peer.ask(seed=7)
        assert peer.stats.bodies[0] == {"model": "simulated", "prompt": QUESTION, "seed": 7}
        assert "User-Agent" in peer.stats.headers[0]

    async def silent(peer):
        await peer.ask()
        assert not peer.stats.bodies
        assert not peer.stats.headers
        assert peer.stats.requests == {prompt_sha256(QUESTION): 1}

    with_simulator(recording, answers=answers, record=True)
    with_simulator(silent, answers=answers)


def test_a_key_is_not_shown_with_the_configuration():
    assert "sk-" not in repr(SimulatorConfig(api_key="sk-secret"))
