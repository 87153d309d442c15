"""An endpoint that does everything right, except for one thing on demand."""

import asyncio
import hashlib
import itertools
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from serve_eval.checks.kinds import answering
from serve_eval.launchers._simulated import answers
from serve_eval.launchers._standin import model
from serve_eval.schema import Message
from tests.scripted_server import (
    EVERY_PATH,
    ScriptedServer,
    fail,
    json_reply,
    raw,
    stall,
    stream,
    version,
)
from tests.workflows.smoke import multimodal

MODEL = "m"
CONTEXT = 9000
SLOTS = 8
"""Maximum requests that are answered at a time; others wait."""
WORDS = (
    "red",
    "green",
    "blue",
    "seven",
    "river",
    "stone",
    "north",
    "apple",
    "glass",
    "paper",
    "quiet",
    "early",
)
GONE = {"error": {"message": "the engine is gone"}}
_TOKEN = re.compile(r"\s*\S+")

Wanted = Callable[[Mapping[str, Any]], bool]
"""True if a body is to be treated in a certain way."""


@dataclass(frozen=True, kw_only=True)
class Quirks:
    """The faults of an endpoint.

    `names` are the things that go wrong, each a word in the code below. Bodies that `refuses`
    selects get `refusal` (a status and a JSON body), those that `errs` selects get HTTP 500.
    `prefix` is the path before /chat. `knows` holds answers to prompts. `context` is the number of
    tokens for a prompt and its answer, `owner` that of the listed model.
    """

    names: frozenset[str] = frozenset()
    refuses: Wanted | None = None
    refusal: tuple[int, Any] = (
        400,
        {"object": "error", "message": "this field is not taken", "code": 400},
    )
    errs: Wanted | None = None
    prefix: str = "/v1"
    knows: Mapping[str, str] = field(default_factory=dict)
    context: int = CONTEXT
    owner: str | None = None


@dataclass(frozen=True, kw_only=True)
class Said:
    """One answer: its tokens, the reasoning before it, and its finish reason."""

    tokens: list[str]
    thoughts: str
    finish: str
    calls: list[dict[str, Any]] | None = None

    @property
    def text(self):
        return "".join(self.tokens)


def create(quirks, told=None):
    """Return the endpoint; `told` is its description of itself, as vLLM gives one."""
    if "page" in quirks.names:
        return ScriptedServer(_page("<html><title>gateway</title></html>"), paths=EVERY_PATH)
    script = _Script(quirks)
    routes = {
        "/health": script.health,
        "/version": script.version,
        "/cluster_info": script.cluster,
        f"{quirks.prefix}/models": script.models,
        f"{quirks.prefix.removesuffix('/v1')}/tokenize": script.tokenize,
        "/_internal/tokenize": script.tokenize_internally,
    }
    if told is not None:
        routes["/server_info"] = lambda request: json_reply(told)
    kinds = {"no_chat": "chat/completions", "no_completions": "completions"}
    paths = [
        f"{quirks.prefix}/{path}" for quirk, path in kinds.items() if quirk not in quirks.names
    ]
    return ScriptedServer(script.completions, paths=paths, routes=routes)


class _Script:
    def __init__(self, quirks):
        self.quirks, self.has = quirks, quirks.names.__contains__
        self._numbers = itertools.count()
        self._slots = asyncio.Semaphore(SLOTS)
        self._streams = []
        self._erred = set()
        self.dead = False

    def health(self, request):
        if self.has("health_page"):
            return _page("<html>no</html>", 404)
        return fail(503) if self.has("unhealthy") else raw()

    def version(self, request):
        if self.has("version_500"):
            return _text(500, "oops")
        return fail(404) if self.has("no_version") else version("1.0")

    def cluster(self, request):
        return json_reply({"is_ready": True}) if self.has("orchestrator") else fail(404)

    def models(self, request):
        if self.has("key") and request.headers.get("Authorization") != "Bearer right":
            return json_reply({"error": {"message": "no key"}}, 401)
        if self.has("loading"):
            return _text(503, "loading")
        if self.has("starting"):
            return fail(503, headers={"x-trtllm-server-state": "starting"})
        if self.has("models_500"):
            return _text(500, "no cache folder")
        if self.has("no_models"):
            return json_reply({"detail": "Not Found"}, 404)
        context = self.quirks.context
        one = {"id": MODEL, "owned_by": self.quirks.owner}
        if not self.has("context_untold"):
            one["max_model_len"] = context
        return json_reply({"data": [] if self.has("empty_models") else [one]})

    def tokenize(self, request):
        if self.has("no_tokenize") or (self.has("texts_only") and "messages" in request.body):
            return fail(404)
        if self.has("other_tokenize"):
            return json_reply({"tokens": []})
        chat = "messages" in request.body
        prompt = self._prompts(request.body, chat)[0]
        body = {"add_special_tokens": False, **request.body}
        length = self._length(body, prompt, chat) + self.has("tokenizes_one_more")
        return json_reply({"count": length, "tokens": list(range(length))})

    def tokenize_internally(self, request):
        if not self.has("internal_tokenize") or set(request.body) != {"prompt"}:
            return fail(404)
        ids = list(range(self._length(request.body, request.body["prompt"], chat=False)))
        return json_reply({"count": len(ids), "tokens": ids})

    async def completions(self, request):
        if self.dead:
            return stall()
        if self.quirks.errs and self.quirks.errs(request.body):
            return _text(500, "Internal Server Error")
        if self.quirks.refuses and self.quirks.refuses(request.body):
            return json_reply(self.quirks.refusal[1], self.quirks.refusal[0])
        await self._slots.acquire()
        try:
            response = await self._answer(request)(request)
        except BaseException:
            if not self.has("leak"):
                self._slots.release()
            raise
        self._slots.release()
        return response

    # ----------------------------------------------------------------------------------------------
    # content of answers

    def _answer(self, request):
        chat, most = request.chat, request.max_tokens
        media, body = multimodal.split(request.body)
        if (refused := multimodal.refuse(media, self.has, len(request.raw))) is not None:
            return refused
        if self.has("ignores_max_tokens") or (
            self.has("ignores_max_completion_tokens") and "max_completion_tokens" in body
        ):
            most = 2000
        if most == 0 and "max_tokens_0" in "".join(self.quirks.names):
            most = 1 if self.has("max_tokens_0_is_1") else 2000
        if most <= 0:
            return fail(400, f"`max_tokens` ({most}) must be greater than 0")
        prompts = self._prompts(body, chat)
        seen = multimodal.count_tokens(media, self.has)
        lengths = [self._length(body, prompt, chat) + seen for prompt in prompts]
        context = self.quirks.context
        if max(lengths) + most > context and not self.has("no_context"):
            self.dead = self.has("dies_of_long_prompts")
            if self.has("wraps_refusals"):
                detail = (
                    "Internal server error 400, message='Bad Request',"
                    " url='http://localhost:1/v1/completions'"
                )
                return json_reply({"detail": detail}, 500)
            long = f"the context length is {context} tokens, and this {lengths[0]}"
            return fail(400, "no" if self.has("no_reason") else long)
        n = 1 if self.has("one_choice") else body.get("n", 1) + self.has("a_choice_too_many")
        said = [self._say(prompt, body, most, index) for prompt in prompts for index in range(n)]
        if (shown := multimodal.answer(media, self.has)) is not None:
            said = [Said(tokens=_TOKEN.findall(shown), thoughts="", finish="stop")]
        if self.has("one_of_batch"):
            said = said[:1]
        if self.has("other_first_alone") and most == 1:
            said = [replace(one, tokens=["else"]) for one in said]
        usage = {
            "prompt_tokens": sum(lengths),
            "completion_tokens": sum(len(one.tokens) for one in said),
        }
        if self.has("thinks_in_secret"):
            usage["completion_tokens_details"] = {"reasoning_tokens": 16}
        if self.has("no_prompt_tokens"):
            usage["prompt_tokens"] = 0
        if body.get("stream") and not self.has("no_stream"):
            if self.has("errs_first") and prompts[0] not in self._erred:
                self._erred.add(prompts[0])
                return stream([GONE])
            ends = b"\r\n" if self.has("carriage_returns") else b"\n"
            return stream(self._paced(request, self._events(request, said, usage)), line_end=ends)
        choices = [
            {
                **self._choice(body, prompts[0], one, number, chat),
                **self._ids(body, one, lengths[0], chat=False),
            }
            for number, one in enumerate(said)
        ]
        whole = {"id": "x", "object": "answer", "model": MODEL, "choices": choices, "usage": usage}
        return json_reply(whole | (self._ids(body, said[0], lengths[0], chat=True) if chat else {}))

    def _ids(self, body, said, length, *, chat):
        """Return the token ids of an answer: those of a chat's prompt are beside its choices."""
        if body.get("detokenize") is False and self.has("ids_instead_of_text"):
            return {"token_ids": list(range(len(said.tokens)))}
        if not body.get("return_token_ids") or self.has("no_ids"):
            return {}
        first = 5 if self.has("other_ids") else 0
        prompt = [first, *range(1, length + self.has("an_id_too_many"))]
        written = list(range(len(said.tokens) // (2 if self.has("few_ids") else 1)))
        if chat:
            return {"prompt_token_ids": prompt}
        return {"token_ids": written, "prompt_token_ids": prompt}

    def _prompts(self, body, chat):
        if chat:
            return [body["messages"][-1]["content"]]
        given = body["prompt"]
        if isinstance(given, str):
            return [given]
        if isinstance(given[0], int):
            return [
                " ".join(f"t{token}" for token in (given * 2 if self.has("ids_as_text") else given))
            ]
        return list(given)

    def _length(self, body, prompt, chat):
        """Return the prompt tokens: its words, one per turn, and special tokens.

        The request and the quirks decide the number of special tokens.
        """
        if isinstance(body.get("prompt"), list) and isinstance(body["prompt"][0], int):
            return len(prompt.split())
        turns = body["messages"] if chat else []
        if self.has("ignores_system"):
            turns = turns[-1:]
        special = 1
        if not self.has("no_special_setting"):
            special += (
                body.get("add_special_tokens", self.has("doubles_special_tokens")) if chat else 0
            )
        return special + (
            sum(1 + len(turn["content"].split()) for turn in turns) if chat else len(prompt.split())
        )

    def _say(self, prompt, body, most, index):
        if body.get("tools") and not self.has("no_tools"):
            if self.has("call_as_text"):
                return Said(
                    tokens=['<tool_call>{"name": "get_weather"}</tool_call>'],
                    thoughts="",
                    finish="stop",
                )
            arguments = "Paris" if self.has("bad_arguments") else '{"city": "Paris"}'
            call = {
                "id": "1",
                "type": "function",
                "function": {"name": "get_weather", "arguments": arguments},
            }
            return Said(tokens=[], thoughts="", finish="tool_calls", calls=[call])
        text, thoughts = self._text(prompt, body, index), ""
        if "7 + 5" in prompt and not self.has("no_thoughts"):
            text, thoughts = "12", "Seven and five."
            if self.has("open_thoughts"):
                text, thoughts = "<think>Seven and five.", ""
            if self.has("tags_in_text"):
                text, thoughts = "<think>Seven and five.</think>12", ""
            if self.has("tags_left"):
                text, thoughts = "</think>12", "Seven and five."
        if "Reply" in prompt or "7 + 5" in prompt:
            if self.has("looping_thoughts") or (
                self.has("greedy_loops") and not body.get("temperature")
            ):
                return Said(tokens=[], thoughts="hm " * most, finish="length")
            if self.has("long_thoughts"):
                counted = "".join(f"hm {i} " for i in range(most // 2))
                return Said(tokens=[], thoughts=counted, finish="length")
        misfiles = self.has("misfiles") or (self.has("misfiles_streams") and body.get("stream"))
        if misfiles and prompt == answering.PROMPT and "messages" in body:
            return Said(tokens=[], thoughts=" Paris.", finish="stop")
        if self.has("misfiles_beginnings") and body.get("stream") and "messages" in body:
            pieces = _TOKEN.findall(text)[:most]
            return Said(tokens=pieces[1:], thoughts=pieces[0], finish="length")
        if self.has("empty"):
            return Said(tokens=[], thoughts="", finish="stop")
        if self.has("markers"):
            text = f"<|im_end|> {text}"
        tokens = _TOKEN.findall(text)
        finish = "length" if len(tokens) > most else "stop"
        tokens = tokens[:most]
        for stop in body.get("stop") or ():
            kept = "".join(tokens)
            at = kept.find(stop)
            if at >= 0 and not self.has("ignores_stop"):
                tokens = _TOKEN.findall(kept[: at + (len(stop) if self.has("keeps_stop") else 0)])
                finish = "length" if self.has("stop_as_length") else "stop"
        return Said(tokens=tokens, thoughts=thoughts, finish=finish)

    def _text(self, prompt, body, index):
        if prompt in self.quirks.knows:
            return self.quirks.knows[prompt]
        form = body.get("response_format")
        if form and not self.has("no_guided"):
            if self.has("blank_json"):
                return '{"word":' + "\n \t" * 40 + " x" * 200
            if self.has("wrong_guided") or self.has(f"wrong_{form.get('type')}"):
                return '{"type":"json_schema"}'
            schema = answers.schema_of(form)
            return '{"answer":2}' if schema is None else answers.generate_text(schema)
        skilled = (
            None
            if self.has("unskilled") or self.has("one_word")
            else model.answer((Message(role="user", content=prompt),))
        )
        if skilled is not None:
            return skilled.strip()
        hot = body.get("temperature", 1.0) and not self.has("always_greedy")
        drawn = f"{body.get('seed', '')}:{index}" if hot else ""
        if self.has("restless") or (hot and self.has("ignores_seed")):
            drawn = str(next(self._numbers))
        digest = hashlib.sha256(f"{prompt}:{drawn}".encode()).digest()
        broken = "\ufffd" if self.has("broken") else ""
        if hot and self.has("parts_later"):
            parted = hashlib.sha256(f"{next(self._numbers)}".encode()).digest()
            digest = digest[:5] + parted[:25]
        return broken + ("" if self.has("one_word") else " ").join(
            WORDS[byte % len(WORDS)] for byte in digest[:30]
        )

    # ----------------------------------------------------------------------------------------------
    # form of answers

    def _choice(self, body, prompt, said, number, chat):
        ending = {
            "index": 0 if self.has("one_index") else number,
            "finish_reason": "unknown" if self.has("odd_finish") else said.finish,
            "logprobs": self._logprobs(body, prompt, said, chat),
        }
        if not chat:
            text = prompt + said.text if body.get("echo") else said.text
            return {**ending, "text": text}
        role = "user" if self.has("odd_role") else "assistant"
        message = {
            "role": role,
            "content": said.text,
            "reasoning_content": said.thoughts,
            "tool_calls": said.calls,
        }
        return {**ending, "message": message}

    def _logprobs(self, body, prompt, said, chat):
        if not body.get("logprobs") or self.has("no_logprobs"):
            return None
        value = 0.5 if self.has("bad_logprobs") else -0.5
        tokens = said.tokens * 2 if self.has("twice_the_logprobs") else said.tokens
        tokens = tokens[:1] if self.has("few_logprobs") else tokens
        if chat or self.has("chat_logprobs"):
            tops = [] if self.has("no_top") else [{"token": "x", "logprob": value}]
            return {
                "content": [
                    {"token": token, "logprob": value, "top_logprobs": tops} for token in tokens
                ]
            }
        values = [value] * len(tokens)
        if body.get("echo") and not self.has("no_prompt_logprobs"):
            asked = _TOKEN.findall(prompt)
            tokens, values = ["", *asked, *tokens], [None, *[value] * len(asked), *values]
        likelier = {"x": 0.0} if self.has("misplaced_logprobs") else {}
        tops = [
            None if one is None else {token: one, **likelier}
            for token, one in zip(tokens, values, strict=True)
        ]
        return {"tokens": tokens, "token_logprobs": values, "top_logprobs": tops}

    async def _paced(self, request, events):
        """Yield the events at the pace of the quirks, and break connections if they say so."""
        if self.has("newest_stream_only"):
            for older in self._streams:
                older.reset()
            self._streams = [request]
            await asyncio.sleep(0.01)
        slow = request.body.get("ignore_eos") or request.max_tokens > 100
        cut = self.has("cut_streams") or (self.has("cut_long_streams") and slow)
        for number, event in enumerate(events):
            if cut and number == 2:
                request.reset()
            yield event
            if slow:
                await asyncio.sleep(0.001)

    def _events(self, request, said, usage):
        if self.has("done_only"):
            yield "[DONE]"
            return
        if self.has("error_event"):
            yield GONE
        if self.has("no_json_event"):
            yield "{oops"
        for number, one in enumerate(said):
            tokens = list(one.tokens)
            if self.has("streams_lose_first"):
                del tokens[0]
            if self.has("streams_double_first"):
                tokens.insert(0, tokens[0])
            if self.has("streams_differ"):
                tokens[-1] = " else"
            if one.thoughts and any("misfiles" in name for name in self.quirks.names):
                yield {"choices": [{"index": number, "delta": {"reasoning": one.thoughts}}]}
            for place, token in enumerate(tokens):
                delta = {"delta": {"content": token}} if request.chat else {"text": token}
                told = None
                if self.has("streams_logprobs") and not (
                    place and self.has("streams_few_logprobs")
                ):
                    told = self._logprobs(
                        request.body,
                        "",
                        Said(tokens=[token], thoughts="", finish=one.finish),
                        request.chat,
                    )
                ending = {"finish_reason": None, "logprobs": told}
                yield {"choices": [{"index": number, **delta, **ending}]}
            if not self.has("no_finish"):
                end = {"delta": {}} if request.chat else {"text": ""}
                yield {"choices": [{"index": number, **end, "finish_reason": one.finish}]}
        if (request.body.get("stream_options") or {}).get("include_usage") and not self.has(
            "no_stream_usage"
        ):
            counted = {**usage, "completion_tokens": 999} if self.has("counts_too_much") else usage
            yield {"choices": [], "usage": counted}
        if not self.has("no_done"):
            yield "[DONE]"


def _page(html, status=200):
    return raw(html.encode(), status, content_type="text/html")


def _text(status, text):
    return raw(text.encode(), status, content_type="text/plain")
