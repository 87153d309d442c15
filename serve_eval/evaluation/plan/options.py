"""Declare every option of a plan once: flag, variable, key in the plan file, type and meaning.

The command line derives its flags from these structures, with one panel of the help for each (see
cli/_options.py). plan/parse.py derives the keys of a plan file and their types. Commands that take
only some of the options have their own structures of the same options. This module does not import
the nouns of a plan, so that `--help` stays fast.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Annotated, ClassVar

from serve_eval.evaluation.plan import flag_values
from serve_eval.evaluation.plan.limits_options import LimitsOptions
from serve_eval.evaluation.plan.shared_options import (
    SPEC,
    AllowCodeExecution,
    AllowMismatch,
    ApiKey,
    ApiKeyEnv,
    CaBundle,
    Cases,
    DatasetRoot,
    Header,
    IncludePath,
    Limit,
    Margin,
    MaxTokensField,
    Model,
    NoReference,
    Proxy,
    ReferenceModel,
    ReferencesDir,
    Seed,
    Set,
    Tasks,
    VerdictRuleName,
)
from serve_eval.plugins.setting import Declared, Setting, list_declared


@dataclass(frozen=True, kw_only=True)
class AskedOptions:
    """Options for the model, the tasks and their samples."""

    title: ClassVar[str] = "What is asked"
    model: Model = None
    tasks: Tasks = None
    cases: Cases = None
    dataset_root: DatasetRoot = None
    allow_hub: Annotated[bool | None, Setting("Download data sets that are not found locally.")] = (
        None
    )
    allow_code_execution: AllowCodeExecution = None
    include_path: IncludePath = None
    limit: Limit = None
    repeats: Annotated[
        int | None,
        Setting(
            "Ask every sample N times and average (default 1, or the value in its case file). The"
            " report shows how stable the answers are.",
            flags=("--repeats", "--iterations"),
            metavar="N",
            in_file=int | dict[str, int],
        ),
    ] = None
    seed: Seed = None
    settings: Set = None


@dataclass(frozen=True, kw_only=True)
class ProtocolOptions:
    """Options for the protocol of all tasks, which the plan file has under `protocol`."""

    title: ClassVar[str] = "By which protocol, for every task"
    apply_chat_template: Annotated[
        bool | None,
        Setting(
            "Send chat requests, or plain text.",
            flags=("--apply-chat-template/--no-apply-chat-template",),
        ),
    ] = None
    tokenizer: Annotated[
        str | None,
        Setting(
            "Folder with the chat template, to render chats locally. For likelihood tasks, it"
            " names the first token.",
            metavar="DIR",
            parse=flag_values.absolute,
        ),
    ] = None
    system_prompt: Annotated[
        str | None,
        Setting("System turn. Without chat: text before each prompt.", metavar="TEXT"),
    ] = None
    num_fewshot: Annotated[int | None, Setting("Worked examples in each prompt.", metavar="N")] = (
        None
    )
    fewshot_as_multiturn: Annotated[
        bool | None,
        Setting(
            "Send each worked example as two turns of the chat.",
            flags=("--fewshot-as-multiturn/--no-fewshot-as-multiturn",),
        ),
    ] = None
    thinking: Annotated[
        str | None,
        Setting("Set enable_thinking in chat_template_kwargs: on or off.", metavar="on|off"),
    ] = None
    max_tokens: Annotated[
        int | None, Setting("Maximum number of tokens of an answer.", metavar="N")
    ] = None
    temperature: Annotated[
        float | None,
        Setting("Sampling temperature. 0 is greedy, as in most tasks.", metavar="T"),
    ] = None
    top_p: Annotated[float | None, Setting("Probability mass to sample from.", metavar="P")] = None
    sampling_seed: Annotated[
        int | None,
        Setting(
            "Seed in each request. (--seed selects the subset.)",
            metavar="N",
            key="seed",
        ),
    ] = None
    extra_body: Annotated[
        str | None,
        Setting(
            "More fields for every request, as a JSON object.",
            metavar="JSON",
            parse=flag_values.json_object,
        ),
    ] = None
    suite_exact: Annotated[
        bool | None,
        Setting(
            "Reproduce the quirks of the original suite too.",
            flags=("--suite-exact/--no-suite-exact",),
        ),
    ] = None


@dataclass(frozen=True, kw_only=True)
class JudgedOptions:
    """Options for the reference and the verdict rule."""

    title: ClassVar[str] = "How it is judged"
    reference_model: ReferenceModel = None
    dtype: Annotated[
        str | None,
        Setting(
            "Data type that selects the reference (default auto).",
            metavar="TYPE",
            key="accuracy_spec.dtype",
        ),
    ] = None
    quant_algo: Annotated[
        str | None,
        Setting(
            "Quantization that selects the reference: FP8, NVFP4, ...",
            metavar="NAME",
            key="accuracy_spec.quant_algo",
        ),
    ] = None
    kv_cache_quant_algo: Annotated[
        str | None,
        Setting(
            "KV cache quantization that selects the reference.",
            metavar="NAME",
            key="accuracy_spec.kv_cache_quant_algo",
        ),
    ] = None
    spec_dec_algo: Annotated[
        str | None,
        Setting(
            "Speculative decoding that selects the reference: MTP, Eagle, ...",
            metavar="NAME",
            key="accuracy_spec.spec_dec_algo",
        ),
    ] = None
    extra_acc_spec: Annotated[
        str | None,
        Setting(
            "More words that select the reference.",
            metavar="TEXT",
            key="accuracy_spec.extra_acc_spec",
        ),
    ] = None
    references_dir: ReferencesDir = None
    no_reference: NoReference = None
    allow_missing_reference: Annotated[
        bool | None, Setting("Judge tasks that have a reference, and print values of the others.")
    ] = None
    allow_mismatch: AllowMismatch = None
    verdict: VerdictRuleName = None
    margin: Margin = None
    early_stop: Annotated[
        bool | None,
        Setting(
            "Stop when the verdict is practically certain.",
            flags=("--early-stop/--no-early-stop",),
            in_file=bool | float,
        ),
    ] = None
    early_stop_eps: Annotated[
        float | None,
        Setting(
            "Stop early with at most this probability of another verdict (default .01). For a"
            " paired rule, whose error is its alpha: probability of too many missing answers.",
            metavar="P",
            key="early_stop",
            in_file=None,
        ),
    ] = None


@dataclass(frozen=True, kw_only=True)
class AddressOptions:
    """Options for the endpoint, or for the launcher that starts one."""

    title: ClassVar[str] = "How the endpoint is reached"
    base_url: Annotated[
        str | None,
        Setting(
            "Endpoint: host:port, .../v1 or a full path (default OPENAI_BASE_URL, else"
            " localhost:8000).",
            metavar="URL",
        ),
    ] = None
    launcher: Annotated[
        str | None,
        Setting(
            "Launcher that starts the endpoint. See serve-eval list launchers.",
            metavar="NAME",
            in_file=SPEC,
        ),
    ] = None


@dataclass(frozen=True, kw_only=True)
class ConnectionOptions:
    """Options of the section `connection`: how requests reach the endpoint."""

    title: ClassVar[str] = "How the endpoint is reached"
    api_key_env: ApiKeyEnv = None
    header: Header = None
    proxy: Proxy = None
    ca_bundle: CaBundle = None
    max_tokens_field: MaxTokensField = None
    api_key: ApiKey = None


@dataclass(frozen=True, kw_only=True)
class FolderOptions:
    """Options for the run folder."""

    title: ClassVar[str] = "What is written"
    output_dir: Annotated[
        str | None,
        Setting(
            "Run folder (default outputs/<time>_<model>). An existing run is resumed.",
            flags=("--output-dir", "-o"),
            metavar="DIR",
        ),
    ] = None


IN_A_PLAN = (
    AskedOptions,
    JudgedOptions,
    AddressOptions,
    ConnectionOptions,
    LimitsOptions,
    FolderOptions,
)
"""The structures whose options are keys of a plan file. Options of ProtocolOptions are below its
key `protocol`."""


def keys_in_file() -> Iterator[tuple[str, Declared]]:
    """Yield each key that a plan file may have, such as "limits.order", with its option."""
    for structure in IN_A_PLAN:
        for option in list_declared(structure):
            if option.setting.in_file is not None:
                yield option.key, option
