"""Options of the simulated endpoint, checked."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated

from launchers._simulated.faults import COUNTS, SHARES, Fault, out_of_range
from launchers._simulated.prompt_logprobs import Form, Telling
from serve_eval.plugins.setting import Setting


@dataclass(frozen=True, slots=True, kw_only=True)
class SimulatedBehaviour:
    """Set how the server answers and misbehaves. Rates and `damage` are in [0, 1], times in
    seconds.

    Prompts that the answer file does not know fail only at a `failure_rate` of 1, so that a
    client's first trial can pass. With `varied` a prompt that is asked again is decided again.
    `crash_after` ends the process, so it is for a process of its own. `any_model` does as
    trtllm-serve does, `no_models` as its orchestrator. `no_guided` and `no_tools` ignore
    response_format and tools; without them, prompts that the answer file does not know are answered
    by what fits the schema, and by a call of the first tool. With `prompt_logprobs`, an answer that
    is a number is the log-probability of every token.
    """

    seed: Annotated[
        int, Setting("The seed of all draws: which prompts are answered right, which fail.")
    ] = 0
    run: Annotated[
        int,
        Setting("Two runs with the same seed and another number here differ as flip_rate says."),
    ] = 0
    varied: Annotated[bool, Setting("A repeated prompt may get another answer.")] = False
    damage: Annotated[float, Setting("The share of the right answers that are lost.")] = 0.0
    latency_s: Annotated[float, Setting("How many seconds an answer takes.")] = 0.0
    latency_jitter_s: Annotated[float, Setting("Up to how many seconds more it takes.")] = 0.0
    failure_rate: Annotated[float, Setting("The share of the prompts whose requests fail.")] = 0.0
    failure_kind: Annotated[
        Fault,
        Setting("How they fail: with a status, without an answer, or with a body that holds none."),
    ] = "500"
    failures_per_prompt: Annotated[
        int, Setting("How often each of them fails before it is answered; 0: always.")
    ] = 0
    truncate_rate: Annotated[
        float, Setting("The share of the answers that lose half of their words.")
    ] = 0.0
    empty_rate: Annotated[float, Setting("The share of the answers that are empty.")] = 0.0
    crash_after: Annotated[int | None, Setting("End the process at the first request after N.")] = (
        None
    )
    context_tokens: Annotated[
        int | None, Setting("The most tokens of a prompt and max_tokens together.")
    ] = None
    any_model: Annotated[bool, Setting("Every name of a model is accepted.")] = False
    strict_fields: Annotated[
        bool, Setting("Fields of a request that are not known are refused.")
    ] = False
    no_models: Annotated[bool, Setting("There is no /v1/models.")] = False
    no_chat: Annotated[bool, Setting("There is no /v1/chat/completions.")] = False
    no_completions: Annotated[bool, Setting("There is no /v1/completions.")] = False
    no_images: Annotated[bool, Setting("Images are refused.")] = False
    no_guided: Annotated[bool, Setting("response_format is ignored.")] = False
    no_tools: Annotated[bool, Setting("Tools are ignored.")] = False
    prompt_logprobs: Annotated[
        Form, Setting("The form in which log-probabilities of prompts are given.")
    ] = "none"
    begins_with: Annotated[str, Setting("The token that begins a text.")] = ""
    tells_beginning: Annotated[
        Telling, Setting("The server that is imitated in telling that token.")
    ] = "none"
    puts_beginning: Annotated[
        bool, Setting("The server puts that token before each prompt itself.")
    ] = False
    tokens_per_step: Annotated[
        float | None, Setting("What each answer reports of speculative decoding. Not set: nothing.")
    ] = None

    def find_problems(self) -> Iterator[tuple[str, str]]:
        """Return what is out of range: (name, message)."""
        return out_of_range({name: getattr(self, name) for name in (*SHARES, *COUNTS)})


@dataclass(frozen=True, slots=True, kw_only=True)
class SimulatorConfig(SimulatedBehaviour):
    """Add to the behaviour what only the server needs.

    A set `api_key` is required as a bearer token; `record` keeps the latest bodies and headers in
    `Stats`. Raises ValueError for values out of range.
    """

    answers: Path | None = None
    model: str = "simulated"
    api_key: str | None = field(default=None, repr=False)
    record: bool = False

    def __post_init__(self) -> None:
        for name, message in self.find_problems():
            raise ValueError(f"{name} {message}")
