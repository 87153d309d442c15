"""Send lm-eval's requests with our client, and never score a failed one."""

from __future__ import annotations

import asyncio
import logging
import math
import os
from collections.abc import Awaitable, Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import lm_eval.models  # noqa: F401  (if ours came first, lm-eval would not register its own)
import msgspec
from lm_eval.api.model import LM
from lm_eval.api.registry import register_model
from tqdm import tqdm

from serve_eval.cli._async import loop_factory
from serve_eval.client.client import Client
from serve_eval.client.connection import connect, problems
from serve_eval.errors import EndpointError, PlanError
from serve_eval.evaluation.capabilities import first_token, prompt_logprobs
from serve_eval.evaluation.capabilities.sampling import (
    choose_sent,
    describe_added,
    probe_defaults,
    to_fields,
)
from serve_eval.evaluation.engine.send import send_to_thinker
from serve_eval.evaluation.launch import with_model
from serve_eval.evaluation.settle import ask_prefix
from serve_eval.harness.instances import (
    MAX_TOKENS,
    as_messages,
    as_text,
    read_sampling,
    split_continuation,
)
from serve_eval.plugins.registry import nearest
from serve_eval.processes.resources import ensure_descriptors
from serve_eval.schema import (
    Connection,
    Endpoint,
    Failure,
    FailureKind,
    Limits,
    Plan,
    Prompt,
    Request,
    Response,
    ServerDefaults,
    Spec,
)
from serve_eval.schema.base_url import normalise_base_url
from serve_eval.scorers.likelihood import continuation, is_likeliest

NAME = "serve-eval"
LEAST_RETRY_BUDGET = 100
_SHOWN = 3

Sent = Callable[[Client, int], Awaitable[Any]]
"""Send one of lm-eval's requests and return its result, or a Failure."""


class ChatText(str):
    """Messages as one text, so that lm-eval can hash and log them."""

    __slots__ = ()


@register_model(NAME)
class ServeEvalLM(LM):  # type: ignore[misc]  # lm-eval is optional and has no types
    """lm-eval's model on our engine, with concurrency, retries and time limits.

    `base_url` may be host:port, end in /v1 or be a full path. `model` is optional if the endpoint
    lists exactly one. The key is read from the variable `api_key_env`. `max_gen_toks` is for tasks
    without a token limit. `prefix` is the text that begins a text to the model, such as <s>, for
    likelihoods without a context (True: the server puts a token there; empty: nothing; None: read
    from the folder `tokenizer`, else from the endpoint). `server_defaults` is that of a run:
    neutral replaces sampling values that the server adds, keep does not. The other arguments are
    those of `schema.Limits`. Raises PlanError for an unknown argument.
    """

    def __init__(
        self,
        base_url: str = "http://localhost:8000/v1",
        model: str | None = None,
        concurrency: int = 64,
        max_gen_toks: int = MAX_TOKENS,
        prefix: str | bool | None = None,
        tokenizer: str | None = None,
        server_defaults: str = "neutral",
        api_key_env: str = Connection().api_key_env,
        max_attempts: int = Limits().max_attempts,
        stall_timeout_s: float = Limits().stall_timeout_s,
        sample_timeout_s: float = Limits().sample_timeout_s,
        ca_bundle: str | None = None,
        client_cert: str | None = None,
        client_key: str | None = None,
        client_key_password_env: str | None = None,
        **others: object,
    ) -> None:
        super().__init__()
        reached = {
            "api_key_env": api_key_env,
            "ca_bundle": ca_bundle,
            "client_cert": client_cert,
            "client_key": client_key,
            "client_key_password_env": client_key_password_env,
        }
        told = {name: str(value) for name, value in reached.items() if value is not None}
        check_arguments(others, told)
        self._plan = Plan(
            model=None if model is None else str(model),
            launcher=Spec(name="external", options={"base_url": normalise_base_url(base_url)}),
            tasks=(),
            connection=msgspec.convert(told, Connection),
            limits=Limits(
                concurrency=int(concurrency),
                max_attempts=int(max_attempts),
                stall_timeout_s=float(stall_timeout_s),
                sample_timeout_s=float(sample_timeout_s),
            ),
        )
        self._max_gen_toks = int(max_gen_toks)
        self._policy = check_policy(server_defaults)
        self._prefix = prefix if isinstance(prefix, bool | None) else str(prefix)
        folder = Path(str(tokenizer)).expanduser()
        self._tokenizer = (
            folder if tokenizer is not None and folder.is_dir() else None
        )  # lm-eval passes a name on the hub

    # ---------------------------------------------------------------------------------------------
    # called by lm-eval

    def generate_until(self, requests: list[Any]) -> list[str]:
        """Return the answers, in the order of the requests.

        Raises EndpointError if a request has none.
        """

        unfinished = set[int]()

        async def send(client: Client, i: int) -> str | Failure:
            context, given = requests[i].args[:2]
            sampling, extra = read_sampling(given, self._max_gen_toks)
            prompt: Prompt = as_messages(context) if isinstance(context, ChatText) else str(context)
            result = await send_to_thinker(
                client, Request(sample_id=str(i), prompt=prompt, sampling=sampling, extra=extra)
            )
            if isinstance(result, Failure):
                return result
            if result.truncated and result.reasoning and not result.text.strip():
                unfinished.add(i)
            return result.text

        texts = self._all("generate_until", requests, send)
        if unfinished:
            warn_of_unfinished(len(unfinished), len(requests))
        return texts

    def loglikelihood(self, requests: list[Any]) -> list[tuple[float, bool | None]]:
        """Return the log-probability of each continuation, and whether greedy decoding gives it.

        The second value is None if the endpoint does not report it; no metric takes that for a no.
        Raises EndpointError if a request has no answer.
        """
        if any(isinstance(request.args[0], ChatText) for request in requests):
            raise PlanError(
                "log-probabilities need a plain text",
                hint="Remove --apply_chat_template.",
            )

        async def send(client: Client, i: int) -> tuple[float, bool | None] | Failure:
            given, wanted = requests[i].args[:2]
            context, wanted = split_continuation(given, wanted, self._prefix or "")
            return await self._judge(client, i, context, wanted)

        return self._all("loglikelihood", requests, send)

    def loglikelihood_rolling(self, requests: list[Any]) -> list[float]:
        """Return the log-probability of each text.

        It includes the first token, or a warning says that it does not. Raises EndpointError, also
        for a text that is longer than the endpoint's limit: a client cannot cut it by tokens.
        """

        async def send(client: Client, i: int) -> float | Failure:
            text = str(requests[i].args[0])
            if isinstance(self._prefix, str) and self._prefix:
                judged = await self._judge(client, i, self._prefix, text)
                return judged if isinstance(judged, Failure) else judged[0]
            result = await _logprobs(client, i, text)
            if isinstance(result, Failure):
                return result
            assert result.prompt_logprobs is not None
            return math.fsum(result.prompt_logprobs.values)

        return self._all("loglikelihood_rolling", requests, send)

    def apply_chat_template(
        self, chat_history: list[dict[str, str]], add_generation_prompt: bool = True
    ) -> str:
        """Return the messages unchanged: the server renders them."""
        return ChatText(as_text(chat_history))

    @property
    def tokenizer_name(self) -> str:
        """The key of lm-eval's cached requests, for the server's unknown template."""
        return f"{NAME}-{self._plan.model or ''}".replace("/", "__")

    # ---------------------------------------------------------------------------------------------
    # requests

    async def _begin(self, client: Client, requests: Sequence[Any], kind: str) -> None:
        """Determine the prefix if a request needs one.

        Raises PlanError for a continuation without context and prefix.
        """
        if kind == "loglikelihood" and all(request.args[0] for request in requests):
            return
        puts = (await first_token(client, {})).works
        if self._prefix is None:
            self._prefix = await ask_prefix(client, self._tokenizer, {})
        if puts or (self._prefix and self._prefix is not True):
            return
        if kind == "loglikelihood":
            raise PlanError(
                "a continuation has no context, and the token that begins a text is unknown",
                hint=(
                    "Name it with --model_args ...,prefix=<s>, or a tokenizer's folder"
                    " with tokenizer=DIR."
                ),
            )
        logging.getLogger("lm_eval").warning(
            "the first token of each text is left out, since the token that begins a text"
            " is unknown: give --model_args ...,prefix=<s> or tokenizer=DIR"
        )

    async def _judge(
        self, client: Client, i: int, context: str, wanted: str
    ) -> tuple[float, bool | None] | Failure:
        result = await _logprobs(client, i, context + wanted)
        if isinstance(result, Failure):
            return result
        assert result.prompt_logprobs is not None
        values = continuation(result.prompt_logprobs, context + wanted, len(context))
        if values is None:
            return Failure(
                kind=FailureKind.INVALID_RESPONSE,
                message=f"cannot tell which tokens belong to the continuation {wanted!r}",
                retryable=False,
            )
        return math.fsum(values), is_likeliest(result.prompt_logprobs, len(values))

    def _all(self, kind: str, requests: Sequence[Any], sent: Sent) -> list[Any]:
        """Return the result of each request.

        Finished results go into lm-eval's cache (--use_cache), even if this raises.
        """
        if not requests:
            return []
        with asyncio.Runner(loop_factory=loop_factory()) as runner:
            results = runner.run(self._ask(kind, requests, sent))
        failed = [result for result in results if isinstance(result, Failure)]
        for request, result in zip(requests, results, strict=True):
            if not isinstance(result, Failure):
                self.cache_hook.add_partial(kind, request.args, result)
        if failed:
            seen = list(dict.fromkeys(f"{failure.kind}: {failure.message}" for failure in failed))
            raise EndpointError(
                f"{len(failed)} of {len(requests)} requests have no answer:"
                f" {'; '.join(seen[:_SHOWN])}",
                hint=(
                    "Nothing was scored, since a failure is not a wrong answer. Finished"
                    " answers are kept with --use_cache FILE."
                ),
            )
        return results

    async def _ask(self, kind: str, requests: Sequence[Any], sent: Sent) -> list[Any]:
        count = len(requests)
        ensure_descriptors(self._concurrency)
        self._plan = await with_model(self._plan, os.environ)
        endpoint = Endpoint(
            base_url=str(self._plan.launcher.options["base_url"]), model=self._plan.model
        )
        results: list[Any] = [None] * count
        async with connect(self._plan, endpoint, os.environ) as client:
            client.retry_budget = max(LEAST_RETRY_BUDGET, count // 4)
            if kind != "generate_until":
                ability, _ = await prompt_logprobs(client)
                if not ability.works:
                    raise EndpointError(
                        f"the endpoint lacks {ability.need}: {ability.seen}", hint=ability.help
                    )
                await self._begin(client, requests, kind)
            elif self._policy == "neutral":
                chat = any(isinstance(request.args[0], ChatText) for request in requests)
                await replace_defaults(client, chat=chat)
            with tqdm(total=count, desc=f"serve-eval: {kind}", disable=self.rank != 0) as bar:
                await self._pass(client, range(count), sent, results, bar)
                again = [i for i, r in enumerate(results) if isinstance(r, Failure) and r.retryable]
                await self._pass(client, again, sent, results, bar)
        return results

    async def _pass(
        self, client: Client, places: Sequence[int], sent: Sent, results: list[Any], bar: Any
    ) -> None:
        """Send these requests with the wanted concurrency, and store their results."""
        left: Iterator[int] = iter(places)

        async def worker() -> None:
            for i in left:
                bar.update(results[i] is None)
                results[i] = await sent(client, i)

        async with asyncio.TaskGroup() as workers:
            for _ in range(min(self._concurrency, len(places))):
                workers.create_task(worker())

    @property
    def _concurrency(self) -> int:
        number = self._plan.limits.concurrency
        assert isinstance(number, int)
        return number


async def _logprobs(client: Client, i: int, text: str) -> Response | Failure:
    sampling, _ = read_sampling({"max_gen_toks": 1})
    return await client.send(
        Request(sample_id=str(i), prompt=text, sampling=sampling, prompt_logprobs=True)
    )


async def replace_defaults(client: Client, *, chat: bool) -> None:
    """Probe what a server adds to requests, and send neutral values in its place, as a run does."""
    endpoint = client.endpoint.with_info(**await client.describe())
    found = await probe_defaults(client, endpoint, chat=chat)
    client.encoder.neutral = to_fields(choose_sent(found, "neutral"))
    if added := describe_added(found):
        logging.getLogger("lm_eval").warning(
            f"the server adds {added} to requests that lack it (generation_config.json?): neutral"
            " values are sent, unless --model_args has server_defaults=keep"
        )


def warn_of_unfinished(count: int, total: int) -> None:
    """Warn of answers that were cut within thoughts, which lm-eval scores as wrong."""
    logging.getLogger("lm_eval").warning(
        f"{count} of {total} answers were cut within the model's thoughts and are empty, so that"
        " they score as wrong: raise the task's max_gen_toks (--gen_kwargs max_gen_toks=N), or"
        " switch thinking off"
    )


KNOWN = (
    "base_url",
    "model",
    "concurrency",
    "max_gen_toks",
    "prefix",
    "tokenizer",
    "server_defaults",
    "api_key_env",
    "max_attempts",
    *("ca_bundle", "client_cert", "client_key", "client_key_password_env"),
)
_OF_LM_EVAL = frozenset({"batch_size", "max_batch_size", "device", "pretrained"})
"""Arguments that lm-eval passes to every model and that a client ignores."""


def check_arguments(others: Iterable[str], connection: Mapping[str, str]) -> None:
    """Raise PlanError for an unknown argument, and for variables that hold no usable secrets."""
    unknown = [name for name in others if name not in _OF_LM_EVAL]
    if unknown:
        raise PlanError(
            [f"--model_args {name}: unknown.{nearest(name, KNOWN)}" for name in unknown]
        )
    wrong = list(problems(connection, os.environ))
    if wrong:
        raise PlanError([f"--model_args {'.'.join(path)}: {text}" for path, text in wrong])


def check_policy(given: str) -> ServerDefaults:
    """Return the policy for what a server adds to requests. Raises PlanError for another word."""
    policies: tuple[ServerDefaults, ...] = ("neutral", "keep")
    for policy in policies:
        if given == policy:
            return policy
    raise PlanError(f"--model_args server_defaults: must be neutral or keep, not {given!r}")
