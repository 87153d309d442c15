"""The finish reasons that servers are known to send, and what each says of the answer. Pure.

An answer that ended, was cut or looped is scored; one that broke off is a failure. A reason that
is not listed is scored, but nobody knows whether the answer is whole (`Response.unlisted_finish`).
Letter case, camel case, hyphens and the prefixes of enumerations do not count.
"""

from __future__ import annotations

import re

from serve_eval.schema import LOOPED

BREAK, PENDING = "break", "pending"
"""The meaning of a reason that says that no answer came, or that more of it follows."""
_ENDS = (
    "stop",  # OpenAI and most others
    "stop_sequence",  # Text Generation Inference, Anthropic, Cohere
    "eos_token",  # Text Generation Inference, watsonx
    "eos",  # Together; llama.cpp's own route says how it stopped
    "word",  # llama.cpp's own route, for a stop string
    "end_turn",  # Anthropic and gateways to it, Bedrock
    "stop_token",
    "end_of_text",
    "endoftext",  # AI21
    "end_of_sequence",
    "end_id",  # TensorRT-LLM's executor
    "stop_words",
    "stop_word",
    "stop_string",
    "complete",  # Cohere
    "completed",  # gateways to OpenAI's Responses
    "finished",
    "finish",
    "finished_stopped",  # vLLM's scheduler
    "stopped",
    "end",
    "done",
    "normal",  # Baidu
    "eos_found",  # LM Studio
    "stop_string_found",
)
_CUTS = (
    "length",  # OpenAI and most others
    "max_tokens",  # Anthropic, Gemini, Cohere, watsonx, Bedrock
    "max_token",
    "max_new_tokens",
    "max_output_tokens",  # gateways to OpenAI's Responses
    "max_completion_tokens",
    "max_tokens_reached",
    "max_output_tokens_reached",
    "max_length",
    "length_limit",
    "length_capped",
    "finished_length_capped",  # vLLM's scheduler
    "limit",  # llama.cpp's own route
    "token_limit",  # watsonx
    "model_length",  # Mistral
    "context_length",
    "context_length_exceeded",
    "context_length_reached",  # LM Studio
    "max_predicted_tokens_reached",  # LM Studio
    "context_window_exceeded",
    "model_context_window_exceeded",  # Anthropic, GLM
    "compaction",  # Anthropic, which LiteLLM passes on as "length"
    "truncated",
)
_CALLS = (
    "tool_calls",  # OpenAI and most others
    "tool_call",  # Cohere
    "tool_use",  # Anthropic
    "function_calls",
)
_LOOPS = (
    "repetition",  # vLLM's detection of repetition
    "finished_repetition",
    "repetition_detected",
    "repetition_truncation",  # proposed for SGLang
    "repeat",  # a proxy of Moonshot for Kimi
    "repeated",
    "repetitive",
    "loop",
    "looping",
)
_BREAKS = (
    "cancelled",  # TensorRT-LLM, watsonx
    "canceled",
    "abort",  # vLLM, SGLang, LMDeploy
    "aborted",  # DeepSeek
    "timeout",  # TensorRT-LLM, Cohere
    "timed_out",
    "time_limit",  # watsonx
    "error",  # vLLM, Mistral, OpenRouter, Cohere
    "finished_ignored",  # vLLM's scheduler, for a prompt that it did not run
    "content_filter",  # OpenAI, Azure, DeepSeek, Kimi
    "content_filtered",  # Bedrock
    "guardrail_intervened",  # Bedrock
    "safety",  # Gemini, with the seven below
    "recitation",
    "language",
    "blocklist",
    "spii",
    "prohibited_content",
    "model_armor",
    "no_image",
    "malformed_response",
    "refusal",  # Anthropic's filter of streams
    "pause_turn",  # Anthropic, whose caller has to continue
    "sensitive",  # GLM, Hunyuan
    "network_error",  # GLM
    "insufficient_system_resource",  # DeepSeek
    "insufficient_resources",
    "engine_overloaded",  # Kimi
    "load",  # Ollama, which only loaded the model
    "unload",
    "model_unloaded",  # LM Studio
    "user_stopped",  # LM Studio
    "user_cancel",  # Cohere
    "preempt",
    "incomplete",
)
_NOT_YET = (
    "",
    "null",  # DashScope, until the last piece
    "none",
    "not_finished",  # TensorRT-LLM, watsonx
    "unfinished",
    "in_progress",
    "generating",
    "unspecified",  # Gemini
)
_MEANINGS = {
    "function_call": "function_call",
    **dict.fromkeys(_ENDS, "stop"),
    **dict.fromkeys(_CUTS, "length"),
    **dict.fromkeys(_CALLS, "tool_calls"),
    **dict.fromkeys(_LOOPS, LOOPED),
    **dict.fromkeys(_BREAKS, BREAK),
    **dict.fromkeys(_NOT_YET, PENDING),
}
_BROKEN = re.compile(
    r"errors?|exceptions?|cancel|cancell?ed|cancell?ation|abort(?:ed)?|time_?out|timed_out|fail"
    r"|failed|failure|fault|filter(?:ed)?|safety|unsafe|censored|blocked|moderation|unavailable"
    r"|overload(?:ed)?|insufficient|disconnect(?:ed)?|preempted|preemption|evicted|killed|crash"
    r"|crashed|interrupt(?:ed)?|interruption|oom|out_of_memory|shutdown|shutting_down|dropped"
)
"""Words that say that a generation broke off, in a reason of several words or one of no list."""
_LOOPING = re.compile(r"repetitions?|repetitive|repeats?|repeated|repeating|loops?|looping|looped")
_PREFIX = re.compile(r"^(?:finish_?reason|stop_?reason|done_?reason)[._]")
_CAMEL = re.compile(r"(?<=[a-z0-9])(?=[A-Z])")
_WORD_END = re.compile(r"[\s.:/-]+")


def meaning(reason: str) -> str:
    """Return "stop", "length", "tool_calls", "function_call", LOOPED, BREAK or PENDING.

    Return the reason itself if nothing is known about it.
    """
    known = _MEANINGS.get(reason)
    if known is not None:
        return known
    flat = _WORD_END.sub("_", _CAMEL.sub("_", reason.strip())).lower()
    flat = _PREFIX.sub("", flat)
    known = _MEANINGS.get(flat)
    if known is not None:
        return known
    if _holds_word(_BROKEN, flat):
        return BREAK
    return LOOPED if _holds_word(_LOOPING, flat) else reason


def _holds_word(words: re.Pattern[str], flat: str) -> bool:
    return re.search(rf"(?:^|_)(?:{words.pattern})(?:_|$)", flat) is not None
