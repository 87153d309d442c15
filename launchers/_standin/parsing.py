"""Turn a body into a request with its prompts, or into the error of the real server."""

from __future__ import annotations

import json
from typing import Any

from aiohttp import web
from pydantic import BaseModel, TypeAdapter, ValidationError

from serve_eval.launchers._http.requests import RefusedRequest, bad_request, trtllm_error
from serve_eval.launchers._standin import model
from serve_eval.launchers._standin.fields import (
    ChatCompletionRequest,
    CompletionRequest,
    Request,
    main_models,
)
from serve_eval.launchers._standin.options import Flavour
from serve_eval.launchers._standin.worker_config import WorkerConfig


class Invalid(Exception):
    """A body that no model accepts. The text is what follows `error` in the answer."""


_Models = tuple[type[CompletionRequest], type[ChatCompletionRequest]]
_MODELS: dict[str, _Models] = {
    "v12": (CompletionRequest, ChatCompletionRequest),
    "main": main_models(),
}
_EITHER: TypeAdapter[Request] = TypeAdapter(Request)


def parse(
    raw: bytes | dict[str, Any], *, chat: bool, flavour: Flavour, path: str, either: bool = False
) -> Request:
    """Return the request in a body.

    With `either`, both kinds are tried, as the 1.2 orchestrator does on both its routes. Raises
    Invalid.
    """
    if isinstance(raw, bytes):
        if flavour == "main" and not raw:
            problem: dict[str, Any] = {
                "type": "missing",
                "loc": ("body",),
                "msg": "Field required",
                "input": None,
            }
            raise Invalid(_text([problem], path))
        try:
            body = json.loads(raw)
        except (json.JSONDecodeError, UnicodeDecodeError) as error:
            if flavour == "main" and isinstance(error, UnicodeDecodeError):
                raise RefusedRequest(
                    400, {"detail": "There was an error parsing the body"}
                ) from error
            at, said = (
                (error.pos, error.msg)
                if isinstance(error, json.JSONDecodeError)
                else (0, str(error))
            )
            problem = {
                "type": "json_invalid",
                "loc": ("body", at),
                "msg": "JSON decode error",
                "input": {},
            }
            raise Invalid(_text([{**problem, "ctx": {"error": said}}], path)) from error
    else:
        body = raw
    try:
        if either:
            return _EITHER.validate_python(body)
        return _MODELS["main" if flavour == "main" else "v12"][chat].model_validate(body)
    except ValidationError as error:
        problems = error.errors(include_url=False)
        raise Invalid(_text([{**p, "loc": ("body", *p["loc"])} for p in problems], path)) from error


def _text(problems: list[dict[str, Any]], path: str) -> str:
    count = f"{len(problems)} validation error{'s' if len(problems) > 1 else ''}:\n"
    lines = "".join(f"  {problem}\n" for problem in problems)
    return f'{count}{lines}\n  File "trtllm-serve", line 1, in wrapper\n    POST {path}'


def set_fields(request: BaseModel) -> dict[str, Any]:
    """Return the fields that the sender set, by their own names: those that are forwarded."""
    return request.model_dump(exclude_unset=True, by_alias=True)


def is_object(http: web.Request, raw: bytes) -> bool:
    """Return False for bodies over which FastAPI's own handler of errors fails."""
    typed = http.content_type in ("application/json", "application/octet-stream")
    return typed and not raw.lstrip().startswith(b"[")


CONTEXT_TOKENS = 131072
"""max_seq_len if nothing sets it; the real default comes from the model's configuration."""
REQUEST_TYPES = ("context_only", "generation_only", "context_and_generation")
"""Other values pass the request's model and are refused when the work begins."""
NO_TRANSCEIVER = (
    "kv_cache_transceiver is disabled, please set 'cache_transceiver_config:"
    " backend:<backend_type>` in config file for disaggregated serving"
)

NO_TEMPLATE = (
    "chat_template cannot be supplied per request unless request-level chat templates are enabled"
    " at server startup."
)
NOT_GUIDED = "Guided decoding is not enabled: set guided_decoding_backend"


class Reading:
    """Reads requests as the configuration of a worker allows."""

    def __init__(self, config: WorkerConfig, flavour: Flavour, *, transceiver: bool) -> None:
        self.config, self.flavour, self.transceiver = config, flavour, transceiver
        self.max_seq_len = config.args.get("max_seq_len") or CONTEXT_TOKENS
        self.max_num_tokens = config.args.get("max_num_tokens") or 8192

    def check(self, request: Request) -> None:
        """Raise RefusedRequest for what passes the request's model and is refused later."""
        if _max_tokens(request) is not None and (_max_tokens(request) or 0) <= 0:
            raise bad_request(f"`max_tokens` ({_max_tokens(request)}) must be greater than 0")
        if request.disaggregated_params is not None and not self.transceiver:
            raise bad_request(NO_TRANSCEIVER)
        if (
            params := request.disaggregated_params
        ) is not None and params.request_type not in REQUEST_TYPES:
            raise bad_request(
                f"Unknown request type: {params.request_type}. Must be {', '.join(REQUEST_TYPES)}"
            )
        if request.n < 1:
            raise bad_request(f"`n` ({request.n}) must be greater than 0")
        if self.flavour == "main":
            self._check_main(request)
        if request.logit_bias and self.config.args.get("num_postprocess_workers"):
            raise bad_request("`logit_bias` is not supported with num_postprocess_workers > 0")
        if isinstance(request, CompletionRequest):
            if request.return_context_logits:
                raise bad_request("`return_context_logits` needs `gather_context_logits`")
        elif request.chat_template and not self.config.allow_request_chat_template:
            raise bad_request(NO_TEMPLATE)

    @property
    def _guided(self) -> bool:
        return bool(self.config.args.get("guided_decoding_backend"))

    def _check_main(self, request: Request) -> None:
        """Raise RefusedRequest for what main's serving layer refuses behind its models."""
        for token in request.logit_bias or {}:
            if not token.lstrip("-").isdigit():
                raise bad_request(
                    f"Invalid logit_bias key '{token}': must be a valid integer token ID"
                )
        several = max(request.n, request.best_of or 1)
        if several > 1 and request.temperature == 0 and not request.use_beam_search:
            raise bad_request(
                f"Greedy decoding in the LLM API does not allow multiple returns. Please set to"
                f" best_of=1, got best_of={several}. Please set to best_of=1 or set an environment"
                " variable TLLM_ALLOW_N_GREEDY_DECODING=1 to allow best_of > 1 under the greedy"
                " decoding."
            )
        choice = request.tool_choice if isinstance(request, ChatCompletionRequest) else None
        if not (choice is None or isinstance(choice, str) or self._guided):
            raise bad_request(NOT_GUIDED)
        wanted = request.response_format
        if wanted is None or wanted.type == "text":
            return
        needed = {"json": "schema", "json_schema": "json_schema"}.get(wanted.type)
        given = {"schema": wanted.schema_, "json_schema": wanted.json_schema}
        if needed is not None and given[needed] is None:
            raise bad_request(
                f"response_format.{needed} is required for response_format.type =="
                f" '{wanted.type}', but got None."
            )
        if not self._guided:
            raise bad_request(NOT_GUIDED)

    def list_prompts(self, request: Request) -> list[list[int]]:
        """Return the token ids of each prompt."""
        if isinstance(request, ChatCompletionRequest):
            prompts = [_chat_prompt(request, self.flavour)]
        else:
            given: Any = request.prompt
            if isinstance(given, str) or (given and isinstance(given[0], int)):
                given = [given]
            if not given:
                raise bad_request("list index out of range")
            if request.echo and not isinstance(given[0], str):
                raise bad_request('can only concatenate list (not "str") to list')
            bos = [model.BOS] if request.add_special_tokens else []
            prompts = [[*bos, *model.encode(one)] if isinstance(one, str) else one for one in given]
        if keep := request.truncate_prompt_tokens:
            prompts = [ids[-keep:] for ids in prompts]
        return prompts

    def room(self, ids: list[int], request: Request) -> int:
        """Return the number of tokens that may be generated.

        Raises RefusedRequest for a prompt that is too long.
        """
        length, wanted = len(ids), _max_tokens(request)
        left = self.max_seq_len - length
        if self.flavour == "main" and left <= 0:
            message = (
                f"This model's maximum context length is {self.max_seq_len} tokens. However, your"
                f" messages resulted in {length} tokens. Please reduce the length of the messages."
            )
            error = trtllm_error(message, "BadRequestError", 400)
            raise RefusedRequest(400, {**error, "code": "context_length_exceeded"})
        if length > self.max_num_tokens and not self.config.args.get("enable_chunked_prefill"):
            raise bad_request(
                f"The sum of prompt length ({length:.1f}), query length (0) should not exceed"
                f" max_num_tokens ({self.max_num_tokens})"
            )
        if left <= 0:
            raise bad_request(
                f"`default_max_tokens` ({left}) must be greater than 0, `default_max_tokens`"
                f" ({left}) = max_seq_len ({self.max_seq_len}) - `splited_prompt_len` ({length}) -"
                " `query_token_len` (0)"
            )
        return left if wanted is None else min(wanted, left)


def _max_tokens(request: Request) -> int | None:
    return (
        request.max_tokens
        if isinstance(request, CompletionRequest)
        else request.max_completion_tokens
    )


def _chat_prompt(request: ChatCompletionRequest, flavour: Flavour) -> list[int]:
    if request.prompt_token_ids is not None:
        return request.prompt_token_ids
    if not request.messages:
        raise bad_request("list index out of range")
    turns = []
    for message in request.messages:
        content = message.get("content") or ""
        if not isinstance(content, str):
            for part in content:
                if (kind := part.get("type")) != "text":
                    main = flavour == "main"
                    says = (
                        f"Unknown part type: {kind}" if main else "this is not a multimodal model"
                    )
                    raise bad_request(says)
            content = "\n".join(part["text"] for part in content)
        turns.append((message["role"], content))
    if request.tools and request.tool_choice != "none":
        tools = [tool.model_dump() for tool in request.tools]
        turns.insert(0, (model.TOOLS_ROLE, json.dumps(tools)))
    ids = model.encode_messages(turns, generation_prompt=request.add_generation_prompt)
    return [model.BOS, *ids] if request.add_special_tokens else ids
