"""Test the embedded server with a tiny random model over real sockets.

OpenAI's own client sends the requests that it supports.
"""

import asyncio
from contextlib import asynccontextmanager

import aiohttp
import msgspec
import openai
import pytest
from openai import AsyncOpenAI

from serve_eval.launchers._embedded import server
from serve_eval.launchers._embedded.engine import Engine
from serve_eval.launchers._embedded.server import create_app
from serve_eval.launchers._http import requests
from serve_eval.launchers._http.server import serve_app
from tests.launchers.embedded import tiny

PROMPT = "Two and two, is it 4 é?"
TURNS = [{"role": "system", "content": "Be brief."}, {"role": "user", "content": PROMPT}]
RENDERED = f"<|system|>\nBe brief.<|end|>\n<|user|>\n{PROMPT}<|end|>\n<|assistant|>\n"


class Peer:
    """A running server and two clients for it."""

    def __init__(self, base_url, session, sdk):
        self.base_url, self.session, self.sdk = base_url, session, sdk

    async def ask(self, path="/completions", **body):
        default = {"prompt": PROMPT} if path == "/completions" else {"messages": TURNS}
        body = {"model": "tiny", "temperature": 0, **default, **body}
        async with self.session.post(self.base_url + path, json=body) as reply:
            return reply.status, await reply.json()

    async def choices(self, path="/completions", **body):
        status, answer = await self.ask(path, **body)
        assert status == 200, answer
        return answer["choices"]

    async def events(self, path="/completions", **body):
        default = {"prompt": PROMPT} if path == "/completions" else {"messages": TURNS}
        body = {"model": "tiny", "temperature": 0, "stream": True, **default, **body}
        async with self.session.post(self.base_url + path, json=body) as reply:
            assert (reply.status, reply.content_type) == (200, "text/event-stream")
            *events, done = [
                part.strip() for part in (await reply.read()).split(b"\n\n") if part.strip()
            ]
        assert done == b"data: [DONE]"
        return [msgspec.json.decode(event.removeprefix(b"data: ")) for event in events]


@asynccontextmanager
async def running(folder, **options):
    app = create_app(folder, {"tiny": "none", "hurt": "int3"}, **options)
    timeout = aiohttp.ClientTimeout(total=30)
    async with (
        serve_app(app) as base_url,
        aiohttp.ClientSession(timeout=timeout) as session,
        AsyncOpenAI(base_url=base_url, api_key="none", max_retries=0) as sdk,
    ):
        yield Peer(base_url, session, sdk)


@pytest.fixture
def tell(folder):
    def tell(story):
        async def told():
            async with running(folder) as peer:
                await story(peer)

        asyncio.run(told())

    return tell


def text_of(tokenizer, ids):
    return b"".join(map(tokenizer.bytes_of, ids)).decode(errors="replace")


# Answers


def test_the_sdk_of_openai_completes_chats_and_streams(tell):
    async def story(peer):
        whole = await peer.sdk.completions.create(
            model="tiny", prompt=PROMPT, max_tokens=9, temperature=0
        )
        [choice] = whole.choices
        assert (choice.finish_reason, len(choice.text) > 0) == ("length", True)
        assert (whole.usage.prompt_tokens, whole.usage.completion_tokens) == (
            len(PROMPT.encode()),
            9,
        )
        pieces = [
            piece
            async for piece in await peer.sdk.completions.create(
                model="tiny",
                prompt=PROMPT,
                max_tokens=9,
                temperature=0,
                stream=True,
                stream_options={"include_usage": True},
            )
        ]
        assert "".join(one.choices[0].text for one in pieces[:-1]) == choice.text
        assert [one.choices[0].finish_reason for one in pieces[:-1]] == [None] * (
            len(pieces) - 2
        ) + ["length"]
        assert len(pieces) > 4
        assert pieces[-1].usage == whole.usage
        chat = await peer.sdk.chat.completions.create(
            model="tiny", messages=TURNS, max_completion_tokens=9, temperature=0
        )
        rendered = await peer.sdk.completions.create(
            model="tiny", prompt=RENDERED, max_tokens=9, temperature=0
        )
        assert chat.choices[0].message.content == rendered.choices[0].text
        assert chat.usage == rendered.usage
        streamed = [
            piece.choices[0]
            async for piece in await peer.sdk.chat.completions.create(
                model="tiny", messages=TURNS, max_tokens=9, temperature=0, stream=True
            )
        ]
        assert streamed[0].delta.role == "assistant"
        assert "".join(one.delta.content or "" for one in streamed) == rendered.choices[0].text

    tell(story)


def test_token_ids_and_lists_are_the_same_prompts(tell, tokenizer):
    async def story(peer):
        [alone] = await peer.choices()
        ids = tokenizer.encode(PROMPT)
        for prompt in ([PROMPT], ids, [ids]):
            assert await peer.choices(prompt=prompt) == [alone]
        other, same, again = await peer.choices(prompt=["other", PROMPT, ids])
        assert (same["text"], same["index"], again["text"]) == (alone["text"], 1, alone["text"])
        assert other["text"] != alone["text"]
        truncated = await peer.choices(prompt="lost" + PROMPT, truncate_prompt_tokens=len(ids))
        assert truncated == [alone]

    tell(story)


def test_several_answers_differ_and_a_seed_repeats_them(tell):
    async def story(peer):
        async def texts(path, **more):
            found = await peer.choices(path, n=4, temperature=1.2, max_tokens=12, **more)
            assert [one["index"] for one in found] == [0, 1, 2, 3]
            return [one["text"] if "text" in one else one["message"]["content"] for one in found]

        first = await texts("/completions", seed=3)
        assert len(set(first)) == 4
        assert await texts("/completions", seed=3) == first
        assert await texts("/completions", seed=4) != first
        assert await texts("/completions") != await texts("/completions")
        assert len(set(await texts("/chat/completions", seed=3))) == 4
        assert len({one["text"] for one in await peer.choices(n=3, top_p=0, temperature=1)}) == 1
        pairs = await peer.choices(prompt=["a", "b"], n=2, seed=3, temperature=1.2)
        assert [one["index"] for one in pairs] == [0, 1, 2, 3]
        assert (
            pairs[1]["text"]
            == (await peer.choices(prompt="a", n=2, seed=3, temperature=1.2))[1]["text"]
        )

    tell(story)


def test_a_stop_string_is_left_out_and_named_in_streams_too(tell):
    async def story(peer):
        [whole] = await peer.choices(max_tokens=30)
        stop = whole["text"][7:9]
        expected = whole["text"][: whole["text"].index(stop)]
        [cut] = await peer.choices(max_tokens=30, stop=["nowhere", stop])
        assert (cut["text"], cut["finish_reason"], cut["stop_reason"]) == (expected, "stop", stop)
        events = await peer.events(max_tokens=30, stop=stop)
        assert "".join(one["choices"][0]["text"] for one in events) == expected
        assert (
            events[-1]["choices"][0]["finish_reason"],
            events[-1]["choices"][0]["stop_reason"],
        ) == ("stop", stop)

    tell(story)


def test_a_stream_of_several_choices_holds_each_of_them(tell):
    async def story(peer):
        body = {"prompt": ["one", "two"], "n": 2, "temperature": 1.0, "seed": 1, "max_tokens": 12}
        whole = await peer.choices(**body)
        events = await peer.events(**body)
        for index, one in enumerate(whole):
            mine = [
                event["choices"][0] for event in events if event["choices"][0]["index"] == index
            ]
            assert "".join(piece["text"] for piece in mine) == one["text"]
            assert mine[-1]["finish_reason"] == one["finish_reason"]
        assert all(event["usage"] is None for event in events)

    tell(story)


def test_the_defaults_are_sixteen_tokens_for_a_text_and_the_window_for_a_chat(tell):
    async def story(peer):
        _, text = await peer.ask(ignore_eos=True)
        assert text["usage"]["completion_tokens"] == 16
        _, chat = await peer.ask("/chat/completions", ignore_eos=True)
        assert chat["usage"]["total_tokens"] == tiny.WINDOW
        assert chat["choices"][0]["finish_reason"] == "length"

    tell(story)


# Log-probabilities


def test_completions_tell_log_probabilities_in_openais_older_form(tell):
    async def story(peer):
        [choice] = await peer.choices(logprobs=2, max_tokens=5)
        told = choice["logprobs"]
        assert "".join(told["tokens"]) == choice["text"]
        assert told["text_offset"] == [sum(map(len, told["tokens"][:i])) for i in range(5)]
        for value, top in zip(told["token_logprobs"], told["top_logprobs"], strict=True):
            assert value == max(top.values()) < 0
            assert 1 <= len(top) <= 2  # two tokens that are parts of characters look alike
        [plain] = await peer.choices(max_tokens=5)
        assert plain["logprobs"] is None
        sdk = await peer.sdk.completions.create(
            model="tiny", prompt=PROMPT, temperature=0, max_tokens=5, logprobs=2
        )
        assert sdk.choices[0].logprobs.token_logprobs == told["token_logprobs"]
        events = await peer.events(logprobs=2, max_tokens=5)
        listed = [
            event["choices"][0]["logprobs"] for event in events if event["choices"][0]["logprobs"]
        ]
        for name in ("tokens", "token_logprobs", "text_offset", "top_logprobs"):
            assert [one for part in listed for one in part[name]] == told[name]

    tell(story)


def test_chat_tells_log_probabilities_with_bytes(tell):
    async def story(peer):
        chat = await peer.sdk.chat.completions.create(
            model="tiny", messages=TURNS, temperature=0, max_tokens=5, logprobs=True, top_logprobs=3
        )
        [choice] = chat.choices
        assert choice.logprobs.content is not None
        said = b"".join(bytes(one.bytes or ()) for one in choice.logprobs.content)
        assert said.decode(errors="replace") == choice.message.content
        for one in choice.logprobs.content:
            assert len(one.top_logprobs) == 3
            assert one.logprob == one.top_logprobs[0].logprob
        [bare] = await peer.choices("/chat/completions", logprobs=True, max_tokens=5)
        assert [one["top_logprobs"] for one in bare["logprobs"]["content"]] == [[]] * 5

    tell(story)


@pytest.mark.parametrize("max_tokens", [0, 1])
def test_echo_tells_the_prompts_own_log_probabilities(tell, tokenizer, max_tokens):
    async def story(peer):
        _, answer = await peer.ask(echo=True, logprobs=0, max_tokens=max_tokens)
        [choice], count = answer["choices"], len(tokenizer.encode(PROMPT))
        assert choice["text"].startswith(PROMPT)
        assert len(choice["logprobs"]["tokens"]) == count + max_tokens
        assert "".join(choice["logprobs"]["tokens"][:count]) == PROMPT
        assert choice["logprobs"]["token_logprobs"][0] is None
        assert answer["usage"]["prompt_tokens"] == count
        # The values of the prompt's last token equal those that it has as an answer to the text
        # before it.
        [before] = await peer.choices(prompt=PROMPT[:-1], logprobs=20, max_tokens=1)
        top = before["logprobs"]["top_logprobs"][0]
        if PROMPT[-1] in top:
            assert choice["logprobs"]["token_logprobs"][count - 1] == pytest.approx(
                top[PROMPT[-1]], abs=1e-4
            )
        [silent] = await peer.choices(echo=True, max_tokens=3)
        assert silent["text"].startswith(PROMPT)
        assert silent["logprobs"] is None
        [opening, *rest] = [
            event["choices"][0] for event in await peer.events(echo=True, logprobs=0, max_tokens=3)
        ]
        assert opening["text"] == PROMPT
        assert opening["logprobs"]["token_logprobs"] == choice["logprobs"]["token_logprobs"][:count]
        assert rest[0]["logprobs"]["text_offset"][0] == len(PROMPT)

    tell(story)


def test_vllms_field_tells_them_by_token_id(tell, tokenizer):
    async def story(peer):
        [echoed] = await peer.choices(echo=True, logprobs=0, max_tokens=1)
        [choice] = await peer.choices(prompt_logprobs=2, max_tokens=1)
        first, *entries = choice["prompt_logprobs"]
        assert first is None
        for token, entry, value in zip(
            tokenizer.encode(PROMPT)[1:],
            entries,
            echoed["logprobs"]["token_logprobs"][1:],
            strict=False,
        ):
            assert next(iter(entry)) == str(token)
            assert entry[str(token)]["logprob"] == value
            assert {one["rank"] for one in entry.values()} >= {1, 2}
        status, chat = await peer.ask("/chat/completions", prompt_logprobs=0, max_tokens=1)
        assert status == 200
        assert len(chat["prompt_logprobs"]) == chat["usage"]["prompt_tokens"]

    tell(story)


# Refusals


@pytest.mark.parametrize(
    ("path", "body", "said"),
    [
        (
            "/completions",
            {"prompt": "x" * 299, "max_tokens": 2},
            "maximum context length is 300 tokens",
        ),
        (
            "/chat/completions",
            {"messages": [{"role": "user", "content": "x" * 300}]},
            "maximum context length",
        ),
        ("/completions", {"prompt": ""}, "the prompt is empty"),
        ("/completions", {"prompt": []}, "list index out of range"),
        ("/completions", {"prompt": [1, "a"]}, "mixes token ids"),
        ("/completions", {"prompt": [tiny.VOCABULARY]}, "token ids must be between 0 and 259"),
        ("/completions", {"prompt": [-1]}, "token ids must be between 0 and 259"),
        ("/completions", {"prompt": None}, "missing required field `prompt`"),
        ("/chat/completions", {"messages": None}, "missing required field `messages`"),
        ("/chat/completions", {"messages": []}, "list index out of range"),
        ("/completions", {"max_tokens": 0}, "must be greater than 0"),
        ("/completions", {"max_tokens": -5, "echo": True}, "must be greater than -1"),
        ("/completions", {"temperature": -1}, "`float` >= 0"),
        ("/completions", {"temperature": "hot"}, "Expected `float"),
        ("/completions", {"top_p": 1.5}, "`float` <= 1"),
        ("/completions", {"n": 0}, "`int` >= 1"),
        ("/completions", {"n": 300}, "at most 256 choices"),
        ("/completions", {"logprobs": 21}, "between 0 and 20"),
        ("/chat/completions", {"top_logprobs": 2}, "needs `logprobs: true`"),
        ("/completions", {"stream_options": {}}, "when stream is true"),
        ("/completions", {"frequency_penalty": 3}, "must be between -2 and 2"),
        ("/completions", {"top_k": -5}, "must be between -1 and"),
        ("/completions", {"min_p": "small"}, "`min_p` must be a number"),
        (
            "/chat/completions",
            {"response_format": {"type": "json_object"}},
            "`response_format` is not served",
        ),
        (
            "/chat/completions",
            {
                "messages": [
                    {
                        "role": "user",
                        "content": [{"type": "image_url", "image_url": {"url": "data:,"}}],
                    }
                ]
            },
            "not a multimodal model",
        ),
    ],
)
def test_what_cannot_be_answered_is_refused_with_the_reason(tell, path, body, said):
    async def story(peer):
        status, answer = await peer.ask(path, **body)
        assert status == 400
        assert said in (answer.get("message") or answer["error"])

    tell(story)


REFUSED = [
    ("best_of", 2),
    ("length_penalty", 2),
    ("prompt_ignore_length", 3),
    ("logit_bias", {"5": 3}),
    ("top_p_min", 0.1),
    ("min_tokens", 3),
    ("stop_token_ids", [3]),
    ("include_stop_str_in_output", True),
    ("skip_special_tokens", False),
    ("spaces_between_special_tokens", False),
    ("detokenize", False),
    ("return_context_logits", True),
    ("use_beam_search", True),
    ("early_stopping", True),
    ("suffix", "after"),
    ("response_format", {"type": "json_object"}),
    ("tools", [{"type": "function", "function": {"name": "f"}}]),
    ("tool_choice", "required"),
    ("add_generation_prompt", False),
    ("chat_template", "{{ messages }}"),
    ("documents", [{"text": "d"}]),
    ("prompt_token_ids", [5]),
    ("reasoning_effort", "high"),
    ("thinking", {"type": "enabled"}),
    ("thinking_token_budget", 5),
    ("media_io_kwargs", {"video": {}}),
    ("mm_processor_kwargs", {"a": 1}),
    ("lora_request", {"lora_name": "a", "lora_int_id": 1}),
    ("disaggregated_params", {"request_type": "context_only"}),
]
HONOURED = {
    *(
        "model",
        "prompt",
        "messages",
        "max_tokens",
        "max_completion_tokens",
        "n",
        "temperature",
        "top_p",
        "seed",
        "stop",
    ),
    *("top_k", "min_p", "repetition_penalty", "frequency_penalty", "presence_penalty"),
    *(
        "ignore_eos",
        "truncate_prompt_tokens",
        "stream",
        "stream_options",
        "echo",
        "logprobs",
        "top_logprobs",
    ),
    "chat_template_kwargs",
}
HARMLESS = {
    "user": "me",
    "priority": 0.5,
    "conversation_params": {"conversation_id": "c"},
    "cache_salt": "s",
    "agent_hierarchy": [],
    "add_special_tokens": True,
    "parallel_tool_calls": True,
}


def test_every_field_of_trtllm_serve_is_honoured_or_refused(tell):
    known = requests.TEXT_FIELDS | requests.CHAT_FIELDS
    assert {name for name, _ in REFUSED} == set(server.NEUTRAL)
    assert known == {*HONOURED, *HARMLESS, *server.NEUTRAL}

    async def story(peer):
        for path, own in (
            ("/completions", requests.TEXT_FIELDS),
            ("/chat/completions", requests.CHAT_FIELDS),
        ):
            [alone] = await peer.choices(path, max_tokens=2)
            for name, value in REFUSED:
                status, answer = await peer.ask(path, **{name: value})
                assert (status, answer.get("message")) == (
                    400,
                    f"`{name}` is not served by the embedded model",
                )
                if name in own:
                    assert await peer.choices(path, max_tokens=2, **{name: None}) == [alone]
            harmless = {name: value for name, value in HARMLESS.items() if name in own}
            assert await peer.choices(path, max_tokens=2, **harmless) == [alone]

    tell(story)


@pytest.mark.parametrize(
    ("path", "body", "said"),
    [
        ("/chat/completions", {"echo": True}, "`echo` of a chat is not served"),
        (
            "/completions",
            {"stream": True, "stream_options": {"continuous_usage_stats": True}},
            "continuous_usage",
        ),
        ("/chat/completions", {"max_tokens": 3, "max_completion_tokens": 4}, "differ"),
    ],
)
def test_what_is_refused_only_together(tell, path, body, said):
    async def story(peer):
        status, answer = await peer.ask(path, **body)
        assert (status, said in answer["message"]) == (400, True)

    tell(story)


def test_a_body_that_is_none_is_refused(tell):
    async def story(peer):
        for raw in (b"{", b"[]", b"{}", b"\xff"):
            for path in ("/completions", "/chat/completions"):
                async with peer.session.post(peer.base_url + path, data=raw) as reply:
                    assert reply.status == 400
                    assert isinstance((await reply.json())["error"], str)

    tell(story)


def test_unknown_fields_are_refused_only_when_strict_and_neutral_values_never(folder, tell):
    neutral = {
        "frequency_penalty": 0,
        "top_k": -1,
        "logit_bias": {},
        "user": "me",
        "response_format": {"type": "text"},
    }

    async def lenient(peer):
        assert (await peer.ask(surprise=1, **neutral))[0] == 200

    async def strict():
        async with running(folder, strict_fields=True) as peer:
            assert (await peer.ask(**neutral))[0] == 200
            status, answer = await peer.ask(surprise=1)
            assert (status, "surprise" in answer["error"]) == (400, True)

    tell(lenient)
    asyncio.run(strict())


def test_two_models_stand_behind_two_names_and_a_third_is_not_there(tell):
    async def story(peer):
        found = {model.id: model for model in (await peer.sdk.models.list()).data}
        assert set(found) == {"tiny", "hurt"}
        [sound], [hurt] = (
            await peer.choices(max_tokens=20),
            await peer.choices(model="hurt", max_tokens=20),
        )
        assert sound["text"] != hurt["text"]
        with pytest.raises(openai.NotFoundError, match="`other` does not exist"):
            await peer.sdk.completions.create(model="other", prompt=PROMPT)
        async with peer.session.get(peer.base_url + "/models") as reply:
            told = (await reply.json())["data"]
        assert [(one["id"], one["damage"], one["max_model_len"]) for one in told] == [
            ("tiny", "none", 300),
            ("hurt", "int3", 300),
        ]
        async with peer.session.get(peer.base_url.removesuffix("/v1") + "/health") as reply:
            assert reply.status == 200

    tell(story)


# Together


def test_many_at_once_get_what_each_gets_alone(tell):
    async def story(peer):
        prompts = [f"{'word ' * (i % 7)}question {i}" for i in range(40)]

        async def ask(prompt):
            [choice] = await peer.choices(prompt=prompt, max_tokens=5 + len(prompt) % 7)
            return choice["text"]

        together = await asyncio.gather(*map(ask, prompts))
        assert together == [await ask(prompt) for prompt in prompts]

    tell(story)


@pytest.mark.parametrize("stream", [False, True])
def test_the_work_for_a_client_that_goes_away_is_given_up(tell, stream, monkeypatch):
    submitted = []
    submit = Engine.submit

    def recorded(self, wanted, changed):
        submitted.append(submit(self, wanted, changed))
        return submitted[-1]

    async def story(peer):
        body = {
            "model": "tiny",
            "prompt": "x",
            "max_tokens": 299,
            "n": 256,
            "ignore_eos": True,
            "stream": stream,
        }
        asked = asyncio.ensure_future(peer.session.post(peer.base_url + "/completions", json=body))
        while not submitted:  # noqa: ASYNC110
            await asyncio.sleep(0.01)
        if stream:
            (await asked).close()
        asked.cancel()
        while not all(one.over for one in submitted):  # noqa: ASYNC110
            await asyncio.sleep(0.01)
        assert len(submitted) == 256
        assert any(one.cancelled and one.finish_reason is None for one in submitted)
        assert (await peer.ask(max_tokens=3))[0] == 200

    monkeypatch.setattr(Engine, "submit", recorded)
    tell(story)
