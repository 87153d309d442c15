"""Declare the options that several commands share, with the conversion of their values."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Any, Literal

from serve_eval.errors import PlanError
from serve_eval.plugins.setting import Setting
from serve_eval.plugins.values import list_rules

Times = int | Literal["usual"]
USUAL: Literal["usual"] = "usual"
"""The word for the number of repeats with which models are usually compared by a task."""


def names_of(given: Sequence[str] | None) -> list[str] | None:
    """Return the comma-separated names of all uses of an option, or None if there are none."""
    names = [name.strip() for text in given or () for name in text.split(",")]
    return [name for name in names if name] or None


def read_expected(given: Sequence[str] | None) -> dict[str, bool] | None:
    """Return the expectations of all uses of --expect; NAME=false takes one back.

    Raises PlanError for another value than true or false.
    """
    found: dict[str, bool] = {}
    for text in names_of(given) or ():
        name, equals, value = text.partition("=")
        if equals and value not in ("true", "false"):
            raise PlanError(f"--expect: expected {name}, {name}=true or {name}=false, not {text!r}")
        found[name.strip()] = value != "false"
    return found or None


def headers_of(lines: Sequence[str]) -> dict[str, str]:
    """Return headers from lines such as "Name: value". Raises PlanError for any other line."""
    headers = {}
    for line in lines:
        name, colon, value = line.partition(":")
        if not colon or not name.strip():
            raise PlanError("--header: expected 'Name: value'")
        headers[name.strip()] = value.strip()
    return headers


def json_object(text: str) -> dict[str, Any]:
    """Return the JSON object of `protocol.extra_body`. Raises PlanError for anything else."""
    try:
        value = json.loads(text)
    except ValueError as error:
        raise PlanError(f"protocol.extra_body is not valid JSON: {error}") from error
    if not isinstance(value, dict):
        raise PlanError("protocol.extra_body: expected a JSON object, such as '{\"top_k\": 1}'")
    return value


def number_or_word(text: str) -> int | str:
    """Return the text as an integer if it is one, else the text."""
    return int(text) if text.removeprefix("-").isdecimal() else text


def absolute(path: str | None) -> str | None:
    """Return the absolute path, or None for an empty or missing path."""
    return str(Path(path).expanduser().absolute()) if path else None


def absolute_all(paths: Sequence[str]) -> list[str]:
    """Return the absolute paths."""
    return [str(Path(path).expanduser().absolute()) for path in paths]


def margin_of_verdict(points: float) -> list[str]:
    """Return the --set value that --margin stands for."""
    return [f"verdict.margin={points}"]


SPEC: Any = object()
"""A name, or a name with a mapping of options: the type of `tasks`, `launcher` and `verdict` in a
plan file."""
INCLUDE_HELP = (
    "Folder with your own tasks, scorers, launchers, verdict rules. Its code is run. Repeatable."
)

Model = Annotated[
    str | None,
    Setting(
        "Model name. Optional if the endpoint lists exactly one.", "NAME", flags=("--model", "-m")
    ),
]
Tasks = Annotated[
    list[str] | None,
    Setting(
        "Tasks, separated by commas: mmlu,gsm8k. Repeatable.",
        "NAMES",
        flags=("--tasks", "-t"),
        in_file=SPEC,
        parse=names_of,
    ),
]
Cases = Annotated[
    list[str] | None,
    Setting(
        "File or folder with your own cases (YAML). Each top-level key is a task. Repeatable.",
        "PATH",
        in_file=str | list[str],
    ),
]
Requests = Annotated[
    str | None,
    Setting("File of recorded requests (JSON lines), which are sent again as they were.", "FILE"),
]
DatasetRoot = Annotated[
    str | None,
    Setting(
        "Folder with the data sets. LLM_MODELS_ROOT is searched too.",
        "DIR",
        in_file=str | list[str],
    ),
]
AllowHub = Annotated[bool | None, Setting("Download data sets that are missing locally.")]
AllowCodeExecution = Annotated[
    bool | None,
    Setting("Run code written by the model, in a sandbox (humaneval, livecodebench)."),
]
AllowMeaningless = Annotated[
    bool | None,
    Setting(
        "Ask servers whose settings make accuracy meaningless: forced acceptance, dummy weights,"
        " ignore_eos.",
        flag=False,
    ),
]
IncludePath = Annotated[
    list[str] | None,
    Setting(INCLUDE_HELP, "DIR", in_file=str | list[str], parse=absolute_all, variable="always"),
]
Samples = Annotated[
    str | None,
    Setting(
        "Ask only these samples: ids separated by commas, or a file with an id per line or JSON"
        " objects with an id.",
        "FILE|IDS",
        in_file=str | list[str | int] | dict[str, str | list[str | int]],
    ),
]
Limit = Annotated[
    int | None,
    Setting("Ask a random subset of N samples per task, drawn with seed.", "N"),
]
Seed = Annotated[int | None, Setting("Seed of the subset (default 0).", "N", flag=False)]
ServerDefaultsOption = Annotated[
    str | None,
    Setting(
        "Fields such as top_k and penalties that the server sets where requests lack them: neutral"
        " (default) sends neutral values in their place, keep sends none.",
        "neutral|keep",
        in_file=Literal["neutral", "keep"],
        flag=False,
    ),
]
Set = Annotated[
    list[str] | None,
    Setting(
        "Set any key of a plan: gsm8k.num_fewshot=3, launcher.tp=2, limits.order=natural."
        " Repeatable.",
        "KEY=VALUE",
        "set",
        flags=("--set",),
        in_file=None,
    ),
]
Preset = Annotated[
    str | None,
    Setting(
        "Sampling, thinking and max_tokens as a model's card says; auto: by the model's id. Options"
        " that you set win. All: serve-eval data list presets.",
        "NAME",
        in_file=str | dict[str, Any],
    ),
]
Effort = Annotated[
    str | None,
    Setting(
        "Reasoning effort: none, low, medium, high or max, in the form that the model's family"
        " takes.",
        "EFFORT",
        in_file=str | list[str],
        flag=False,
    ),
]
ApplyChatTemplate = Annotated[
    bool | None,
    Setting(
        "Ask with chat requests, or with plain text.",
        flags=("--apply-chat-template/--no-apply-chat-template",),
        flag=False,
    ),
]
Rehearse = Annotated[
    bool | None,
    Setting(
        "Start a stand-in for trtllm-serve in place of the plan's servers, without GPUs or models."
        " The result shows nothing about a model.",
        key="rehearse",
        in_file=None,
    ),
]
AllowMismatch = Annotated[
    list[str] | None,
    Setting("Compare even if this protocol field differs. Repeatable.", "FIELD"),
]
VerdictRuleName = Annotated[
    str | None,
    Setting(
        f"Verdict rule: {', '.join(list_rules())}. Default: paired for a reference that has scores"
        " per sample, else classic.",
        "RULE",
        in_file=SPEC,
    ),
]
ReferenceModel = Annotated[
    str | None,
    Setting("Use the references of this model instead of --model.", "NAME", flag=False),
]
ReferencesDir = Annotated[
    str | None, Setting("Folder with your own references, searched first.", "DIR")
]
NoReference = Annotated[
    bool | None, Setting("Print values without a reference or a verdict (exit code 3).")
]
Margin = Annotated[
    float | None,
    Setting(
        "Smallest drop that matters, in points; paired judges unless --verdict names a rule.",
        "POINTS",
        "set",
        in_file=None,
        parse=margin_of_verdict,
    ),
]
Expect = Annotated[
    list[str] | None,
    Setting(
        "Parts of the path that must be proven: kv_transfer, prefix_cache, speculation,"
        " deterministic. NAME=false takes back what the launcher expects. Repeatable.",
        "NAMES",
        in_file=dict[str, bool],
        parse=read_expected,
    ),
]
ApiKeyEnv = Annotated[
    str | None,
    Setting(
        "Variable with the API key (default OPENAI_API_KEY; '': send none).",
        "NAME",
        "connection.api_key_env",
    ),
]
Header = Annotated[
    list[str] | None,
    Setting(
        "Extra header 'Name: value'; ${VARIABLE} is replaced by its value. Repeatable.",
        "HEADER",
        "connection.headers",
        parse=headers_of,
        variable="always",
    ),
]
Proxy = Annotated[str | None, Setting("HTTP proxy.", "URL", "connection.proxy", flag=False)]
CaBundle = Annotated[
    str | None,
    Setting("File with CA certificates to trust.", "FILE", "connection.ca_bundle", flag=False),
]
ClientCert = Annotated[
    str | None,
    Setting(
        "PEM file with our certificate, for servers that demand one (mTLS).",
        "FILE",
        "connection.client_cert",
        parse=absolute,
        flag=False,
    ),
]
ClientKey = Annotated[
    str | None,
    Setting(
        "PEM file with the key of connection.client_cert, if that file does not have it.",
        "FILE",
        "connection.client_key",
        parse=absolute,
        flag=False,
    ),
]
ClientKeyPasswordEnv = Annotated[
    str | None,
    Setting(
        "Variable with the password of the key, if it is encrypted.",
        "NAME",
        "connection.client_key_password_env",
        flag=False,
    ),
]
MaxTokensField = Annotated[
    str | None,
    Setting(
        "Field for the token limit in chat requests: max_tokens (default) or"
        " max_completion_tokens.",
        "FIELD",
        "connection.max_tokens_field",
        flag=False,
    ),
]
SendMediaOption = Annotated[
    str | None,
    Setting(
        "Send media in files inline (default), or as a path that the server may read.",
        "inline|path",
        "connection.send_media",
        flag=False,
    ),
]
RouteOption = Annotated[
    str | None,
    Setting(
        "Route that chat prompts go by: chat (default), or responses for /v1/responses;"
        " responses_by_id sends the id of the previous answer in place of earlier turns.",
        "chat|responses|responses_by_id",
        "connection.route",
    ),
]
ConversationId = Annotated[
    str | None,
    Setting(
        "Send the id of each conversation as header:NAME or body:PATH, for routers that keep"
        " conversations on a worker.",
        "PLACE",
        "connection.conversation_id",
        flag=False,
    ),
]
ApiKey = Annotated[
    str | None,
    Setting(
        "",
        in_file=None,
        variable="never",
        refused=(
            "a key on the command line is visible to every user of this machine",
            "Export OPENAI_API_KEY, or name another variable with --api-key-env.",
        ),
    ),
]
MaxTokensTotal = Annotated[
    int | None,
    Setting(
        "Start no request once prompts and answers cost N tokens; what is left is not asked.",
        "N",
        "limits.max_tokens_total",
    ),
]
MaxTime = Annotated[
    float | None,
    Setting(
        "Start no request after this time of asking, in all sessions together.",
        "SECONDS",
        "limits.max_time_s",
        flag=False,
    ),
]
PaceOption = Annotated[
    str | None,
    Setting(
        "free (default), or recorded: recorded requests start at their times, up to 1024 at once.",
        "PACE",
        "limits.pace",
    ),
]
RateLimit = Annotated[
    float | None,
    Setting(
        "Start at most N requests per second, evenly spaced.", "N", "limits.rate_limit", flag=False
    ),
]
RequestsPerMinute = Annotated[
    int | None,
    Setting(
        "Keep to a quota: start at most N requests in any minute.",
        "N",
        "limits.requests_per_minute",
        flag=False,
    ),
]
Order = Annotated[
    str | None,
    Setting(
        "Order of the samples: random (default), natural, prefix, longest.",
        "ORDER",
        "limits.order",
        flag=False,
    ),
]
OrderSeed = Annotated[
    int | None,
    Setting(
        "Seed of the random order (default: new for each run).",
        "N",
        "limits.order_seed",
        flag=False,
    ),
]
PageSamples = Annotated[
    int | None,
    Setting(
        "Answers that a page shows of each run (default 5000); show prints every one.",
        "N",
        "limits.page_samples",
        flag=False,
    ),
]
Stream = Annotated[
    bool | None,
    Setting(
        "Stream the answers, to measure the time to the first token and per token.",
        flags=("--stream/--no-stream",),
        key="limits.stream",
        flag=False,
    ),
]
