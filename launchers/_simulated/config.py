"""Options of the simulated endpoint, checked."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path

from launchers._simulated.faults import COUNTS, SHARES, Fault, out_of_range
from launchers._simulated.prompt_logprobs import Form, Telling


@dataclass(frozen=True, slots=True, kw_only=True)
class SimulatorConfig:
    """What the server knows and how it misbehaves. Rates and `damage` are in [0, 1], times in seconds.

    `failure_rate` is the share of the prompts whose requests fail as `failure_kind` says, `failures_per_prompt` times
    each (0: always). Prompts that the answer file does not know fail only at a rate of 1, so that a client's first
    trial can pass. `truncate_rate` is the share of the answers that lose half their words, `empty_rate` of those that
    are "". With `varied` a prompt that is asked again is decided anew. `crash_after` ends the process at the first
    request after so many, so it is for a process of its own.
    `context_tokens` bounds prompt and `max_tokens` together. `any_model` accepts every model name, as trtllm-serve
    does; `strict_fields` refuses what it does not know; `no_models` has no /v1/models, like its orchestrator.
    `no_chat` and `no_completions` lack that route, `no_images` refuses images, and `no_guided` and `no_tools` ignore
    response_format and tools; without them, prompts that the answer file does not know are answered by what fits the
    schema, and by a call of the first tool.
    `prompt_logprobs` is the form in which log-probabilities of prompts are given; an answer that is a number is that
    of every token. `begins_with` is the mark that begins texts, which the server tells as `tells_beginning` says, and
    with `puts_beginning` puts before each prompt itself. `tokens_per_step` is what each answer reports of speculative
    decoding. `api_key` must come as a bearer token when set. `record` keeps the latest bodies and headers in `Stats`.
    Raises ValueError for values out of range.
    """

    answers: Path | None = None
    model: str = "simulated"
    seed: int = 0
    run: int = 0
    varied: bool = False
    damage: float = 0.0
    latency_s: float = 0.0
    latency_jitter_s: float = 0.0
    failure_rate: float = 0.0
    failure_kind: Fault = "500"
    failures_per_prompt: int = 0
    truncate_rate: float = 0.0
    empty_rate: float = 0.0
    crash_after: int | None = None
    context_tokens: int | None = None
    any_model: bool = False
    strict_fields: bool = False
    no_models: bool = False
    no_chat: bool = False
    no_completions: bool = False
    no_images: bool = False
    no_guided: bool = False
    no_tools: bool = False
    prompt_logprobs: Form = "none"
    begins_with: str = ""
    tells_beginning: Telling = "none"
    puts_beginning: bool = False
    tokens_per_step: float | None = None
    api_key: str | None = field(default=None, repr=False)
    record: bool = False

    def __post_init__(self) -> None:
        for name, message in out_of_range({name: getattr(self, name) for name in (*SHARES, *COUNTS)}):
            raise ValueError(f"{name} {message}")
