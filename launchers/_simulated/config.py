"""Check the options of the simulated endpoint, with the kinds of failure that it can show."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import field
from pathlib import Path
from typing import Annotated, Any, Literal

from serve_eval.frozen import freeze
from serve_eval.launchers._http.answers import Form, Telling
from serve_eval.plugins.setting import Setting


@freeze
class SimulatedBehaviour:
    """Set how the server answers and misbehaves.

    Rates and `damage` are in [0, 1], times in seconds. Prompts that the answer file does not know
    fail only at a `failure_rate` of 1, so that a client's first trial can pass. With `varied`, the
    answer to a repeated prompt is drawn again. `crash_after` ends the process, so use it only with
    a separate process. `any_model` imitates trtllm-serve, `no_models` its orchestrator. `no_guided`
    and `no_tools` ignore response_format and tools. Without them, unknown prompts get an answer
    that fits the schema, and a call of the first tool. With `prompt_logprobs`, an answer that is a
    number is the log-probability of every token.
    """

    seed: Annotated[
        int,
        Setting(
            "Seed of all draws, which decide the prompts that are answered right and those"
            " that fail."
        ),
    ] = 0
    run: Annotated[
        int,
        Setting(
            "Number of the run. Runs with the same seed but different numbers differ as"
            " flip_rate says."
        ),
    ] = 0
    varied: Annotated[bool, Setting("Draw a new answer when a prompt is repeated.")] = False
    damage: Annotated[float, Setting("Share of the right answers that are lost.")] = 0.0
    latency_s: Annotated[float, Setting("Seconds that an answer takes.")] = 0.0
    latency_jitter_s: Annotated[
        float, Setting("Maximum additional seconds that an answer takes.")
    ] = 0.0
    failure_rate: Annotated[float, Setting("Share of the prompts whose requests fail.")] = 0.0
    failure_kind: Annotated[
        Fault,
        Setting("Kind of failure: a status, no answer, or a body without an answer."),
    ] = "500"
    failures_per_prompt: Annotated[
        int,
        Setting("Number of failures of a failing prompt before it is answered; 0: always fail."),
    ] = 0
    truncate_rate: Annotated[
        float, Setting("Share of the answers that lose half of their words.")
    ] = 0.0
    empty_rate: Annotated[float, Setting("Share of the answers that are empty.")] = 0.0
    crash_after: Annotated[int | None, Setting("End the process at the first request after N.")] = (
        None
    )
    context_tokens: Annotated[
        int | None, Setting("Maximum tokens of a prompt and max_tokens together.")
    ] = None
    any_model: Annotated[bool, Setting("Accept any model name.")] = False
    strict_fields: Annotated[bool, Setting("Refuse requests with unknown fields.")] = False
    no_models: Annotated[bool, Setting("Do not provide /v1/models.")] = False
    no_chat: Annotated[bool, Setting("Do not provide /v1/chat/completions.")] = False
    no_completions: Annotated[bool, Setting("Do not provide /v1/completions.")] = False
    no_images: Annotated[bool, Setting("Refuse images.")] = False
    no_audio: Annotated[bool, Setting("Refuse sounds.")] = False
    no_video: Annotated[bool, Setting("Refuse videos.")] = False
    any_media: Annotated[bool, Setting("Accept bytes that are no medium, or half of one.")] = False
    local_media: Annotated[
        str | None, Setting("Folder with media that file:// URLs may name. Not set: none.")
    ] = None
    no_guided: Annotated[bool, Setting("Ignore response_format.")] = False
    no_tools: Annotated[bool, Setting("Ignore tools.")] = False
    prompt_logprobs: Annotated[
        Form, Setting("Form in which log-probabilities of prompts are returned.")
    ] = "none"
    begins_with: Annotated[str, Setting("Token that begins every text. Empty: none.")] = ""
    tells_beginning: Annotated[Telling, Setting("Server to imitate in reporting that token.")] = (
        "none"
    )
    puts_beginning: Annotated[
        bool, Setting("Let the server put that token before each prompt.")
    ] = False
    tokens_per_step: Annotated[
        float | None,
        Setting("Tokens per step of speculative decoding that each answer reports. Not set: none."),
    ] = None

    def find_problems(self) -> Iterator[tuple[str, str]]:
        """Yield the values that are out of range: (name, message)."""
        return out_of_range({name: getattr(self, name) for name in (*SHARES, *COUNTS)})


@freeze
class SimulatorConfig(SimulatedBehaviour):
    """Add to the behaviour the settings that only the server needs.

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


Refusal = Literal["500", "429", "503", "html", "wrapped_400"]
BadAnswer = Literal["empty_choices", "null_content", "bad_json"]
Fault = Literal[
    "500",
    "429",
    "503",
    "disconnect",
    "html",
    "empty_choices",
    "null_content",
    "bad_json",
    "hang",
    "wrapped_400",
    "stream_without_finish",
]
"""Kinds of failure: a status in a form of trtllm-serve, no response, or a 200 without an answer.

500: `{"detail": ...}` of an orchestrator. 429: with `Retry-After: 0`. 503: plain text. disconnect:
closes the connection. html: a proxy's page. empty_choices, null_content, bad_json (truncated): a
response without a text. hang: nothing until the client leaves. wrapped_400: a worker's refusal as
an orchestrator's 500. stream_without_finish: an event stream, requested or not, without a finish
reason."""

SHARES = ("damage", "failure_rate", "truncate_rate", "empty_rate")
COUNTS = ("latency_s", "latency_jitter_s", "failures_per_prompt", "crash_after", "context_tokens")


def out_of_range(options: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    """Yield the simulator's options that are out of range: (name, message)."""
    for name in SHARES:
        if name in options and not 0.0 <= options[name] <= 1.0:
            yield name, f"is {options[name]}, which is not between 0 and 1"
    for name in COUNTS:
        if (options.get(name) or 0) < 0:
            yield name, f"is {options[name]}, which is negative"
