"""Refuse fields of a request that the embedded model does not support, instead of ignoring them.

Fields that choose a worker or a turn (`user`, `priority`, ...) are ignored: there is only one of
each. So is `add_special_tokens`, since the tokenizer has none to add.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from serve_eval.launchers._http.errors import bad_request

NEUTRAL: Mapping[str, tuple[object, ...]] = {
    "best_of": (1,),
    "length_penalty": (1,),
    "prompt_ignore_length": (0,),
    "logit_bias": ({},),
    "top_p_min": (0,),
    "min_tokens": (0,),
    "stop_token_ids": ([],),
    "include_stop_str_in_output": (False,),
    "skip_special_tokens": (True,),
    "spaces_between_special_tokens": (True,),
    "detokenize": (True,),
    "return_context_logits": (False,),
    "use_beam_search": (False,),
    "early_stopping": (False,),
    "suffix": ("",),
    "response_format": ({"type": "text"},),
    "tools": ([],),
    "tool_choice": ("none", "auto"),
    "add_generation_prompt": (True,),
    "chat_template": (),
    "documents": ([],),
    "prompt_token_ids": (),
    "reasoning_effort": (),
    "thinking": (),
    "thinking_token_budget": (),
    "media_io_kwargs": ({},),
    "mm_processor_kwargs": ({},),
    "lora_request": (),
    "disaggregated_params": (),
}
"""Fields that would change the answer and are not implemented, with the values, apart from null,
that change nothing."""


def refuse_unserved(body: Mapping[str, Any], *, chat: bool) -> None:
    """Raise RefusedRequest for fields that would change the answer but are not supported."""
    for name, neutral in NEUTRAL.items():
        if body.get(name) is not None and body[name] not in neutral:
            raise bad_request(f"`{name}` is not served by the embedded model")
    if chat and body.get("echo"):
        raise bad_request("`echo` of a chat is not served by the embedded model")
    options = body.get("stream_options")
    if options and options.get("continuous_usage_stats"):
        raise bad_request(
            "`stream_options.continuous_usage_stats` is not served by the embedded model"
        )
    counts = {
        body[name] for name in ("max_tokens", "max_completion_tokens") if body.get(name) is not None
    }
    if len(counts) > 1:
        raise bad_request("`max_tokens` and `max_completion_tokens` differ")
