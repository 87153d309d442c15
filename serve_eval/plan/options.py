"""Declare each option of a plan once: flag, variable, key of the plan file, type and meaning.

The command line derives its flags from these structures, with one panel of the help for each (see
cli/_options.py); plan/plan_file.py derives the keys of a plan file and their types. Commands with a
part of these options have their own structures. Nothing here imports the classes of a plan, so that
`--help` is fast.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Annotated, ClassVar

from serve_eval.plan import shared_options
from serve_eval.plan.limits_options import LimitsOptions
from serve_eval.plan.shared_options import (
    SPEC,
    AllowCodeExecution,
    AllowHub,
    AllowMeaningless,
    AllowMismatch,
    ApiKey,
    ApiKeyEnv,
    ApplyChatTemplate,
    CaBundle,
    Cases,
    ClientCert,
    ClientKey,
    ClientKeyPasswordEnv,
    ConversationId,
    DatasetRoot,
    Effort,
    Expect,
    Header,
    IncludePath,
    Limit,
    Margin,
    MaxTokensField,
    Model,
    NoReference,
    Preset,
    Proxy,
    ReferenceModel,
    ReferencesDir,
    Rehearse,
    Requests,
    RouteOption,
    Samples,
    Seed,
    SendMediaOption,
    ServerDefaultsOption,
    Set,
    Tasks,
    VerdictRuleName,
)
from serve_eval.plugins.setting import Declared, Setting, list_declared

PROTOCOL = "protocol"
"""The key of a plan with the options of all tasks."""
SAMPLING_SEED = "sampling_seed"
"""The option whose field in `protocol` has another name, since a plan has a seed of its own."""


@dataclass(frozen=True, kw_only=True)
class AskedOptions:
    """Choose the model, the tasks and their samples."""

    title: ClassVar[str] = "Tasks and samples"
    model: Model = None
    tasks: Tasks = None
    cases: Cases = None
    requests: Requests = None
    dataset_root: DatasetRoot = None
    allow_hub: AllowHub = None
    allow_code_execution: AllowCodeExecution = None
    allow_meaningless: AllowMeaningless = None
    include_path: IncludePath = None
    samples: Samples = None
    limit: Limit = None
    shard: Annotated[
        str | None,
        Setting(
            "Ask part K of N of the samples, chosen by their ids; serve-eval runs merge joins the"
            " parts. auto/N takes K from SLURM_ARRAY_TASK_ID (1 to N) or JOB_COMPLETION_INDEX.",
            "K/N",
        ),
    ] = None
    repeats: Annotated[
        str | None,
        Setting(
            "Ask every sample N times and average (default 1, or the number in its case file)."
            " usual: as often as models are usually compared by the task (aime 16, gpqa 8; others"
            " 1). The report then shows how stable the answers are.",
            "N|usual",
            flags=("--repeats", "--iterations"),
            in_file=shared_options.Times | dict[str, shared_options.Times],
            parse=shared_options.number_or_word,
        ),
    ] = None
    seed: Seed = None
    server_defaults: ServerDefaultsOption = None
    settings: Set = None
    preset: Preset = None
    effort: Effort = None


@dataclass(frozen=True, kw_only=True)
class ProtocolOptions:
    """Choose the protocol of all tasks: the section `protocol` of the plan file."""

    title: ClassVar[str] = "Protocol of all tasks"
    below: ClassVar[str] = PROTOCOL
    apply_chat_template: ApplyChatTemplate = None
    tokenizer: Annotated[
        str | None,
        Setting(
            "Folder of the tokenizer. The client renders its chat template and, for likelihoods,"
            " reads its first token.",
            "DIR",
            parse=shared_options.absolute,
            flag=False,
        ),
    ] = None
    system_prompt: Annotated[
        str | None,
        Setting("System message; without chat, a text before each prompt.", "TEXT", flag=False),
    ] = None
    num_fewshot: Annotated[
        int | None, Setting("Number of worked examples in each prompt.", "N")
    ] = None
    fewshot_as_multiturn: Annotated[
        bool | None,
        Setting(
            "Send each example as two turns of the chat.",
            flags=("--fewshot-as-multiturn/--no-fewshot-as-multiturn",),
            flag=False,
        ),
    ] = None
    thinking: Annotated[
        str | None,
        Setting("Value of enable_thinking in chat_template_kwargs.", "on|off", flag=False),
    ] = None
    max_tokens: Annotated[
        str | None,
        Setting(
            "Maximum number of tokens in an answer. auto: the limit of the newest finished run of"
            " the model and task next to the run folder, doubled if it cut an answer.",
            "N|auto",
            parse=shared_options.number_or_word,
        ),
    ] = None
    temperature: Annotated[
        float | None, Setting("Sampling temperature; 0, as in most tasks, is greedy.", "T")
    ] = None
    top_p: Annotated[
        float | None,
        Setting("Sample from the likeliest tokens with this total probability.", "P", flag=False),
    ] = None
    sampling_seed: Annotated[
        int | None,
        Setting(
            "Seed from which that of each request is derived; seed selects the subset.",
            "N",
            "seed",
            flag=False,
        ),
    ] = None
    extra_body: Annotated[
        str | None,
        Setting(
            "More fields for every request, as a JSON object.",
            "JSON",
            parse=shared_options.json_object,
            flag=False,
        ),
    ] = None
    suite_exact: Annotated[
        bool | None,
        Setting(
            "Reproduce the quirks of the original suite as well.",
            flags=("--suite-exact/--no-suite-exact",),
            flag=False,
        ),
    ] = None


@dataclass(frozen=True, kw_only=True)
class ReferenceKeyOptions:
    """Choose the reference."""

    title: ClassVar[str] = "Verdict"
    reference_model: ReferenceModel = None
    dtype: Annotated[
        str | None,
        Setting(
            "Data type of the reference to use (default auto).",
            "TYPE",
            "accuracy_spec.dtype",
            flag=False,
        ),
    ] = None
    quant_algo: Annotated[
        str | None,
        Setting(
            "Quantization of the reference to use: FP8, NVFP4, ...",
            "NAME",
            "accuracy_spec.quant_algo",
        ),
    ] = None
    kv_cache_quant_algo: Annotated[
        str | None,
        Setting(
            "KV cache quantization of the reference to use.",
            "NAME",
            "accuracy_spec.kv_cache_quant_algo",
        ),
    ] = None
    spec_dec_algo: Annotated[
        str | None,
        Setting(
            "Speculative decoding of the reference to use: MTP, Eagle, ...",
            "NAME",
            "accuracy_spec.spec_dec_algo",
            flag=False,
        ),
    ] = None
    extra_acc_spec: Annotated[
        str | None,
        Setting(
            "Extra specification of the reference to use.",
            "TEXT",
            "accuracy_spec.extra_acc_spec",
            flag=False,
        ),
    ] = None
    references_dir: ReferencesDir = None


@dataclass(frozen=True, kw_only=True)
class JudgedOptions(ReferenceKeyOptions):
    """Choose the reference and the verdict rule."""

    title: ClassVar[str] = "Verdict"
    no_reference: NoReference = None
    allow_missing_reference: Annotated[
        bool | None,
        Setting("Print the value without a verdict if no reference applies.", flag=False),
    ] = None
    allow_mismatch: AllowMismatch = None
    verdict: VerdictRuleName = None
    margin: Margin = None
    expect: Expect = None
    early_stop: Annotated[
        bool | None,
        Setting(
            "Stop when the verdict is almost certain.",
            flags=("--early-stop/--no-early-stop",),
            in_file=bool | float,
        ),
    ] = None
    accept_identical: Annotated[
        bool | None,
        Setting(
            "Ask nothing, and say PASS by identity, where probes of the reference show the same"
            " deployment.",
            flags=("--accept-identical/--no-accept-identical",),
        ),
    ] = None
    early_stop_eps: Annotated[
        float | None,
        Setting(
            "Tolerated probability that the whole run would give another verdict (default"
            " .01). For rules that compare pairs: tolerated risk of too many missing answers.",
            "P",
            "early_stop",
            in_file=None,
            flag=False,
        ),
    ] = None
    end_when_certain: Annotated[
        bool | None,
        Setting(
            "Ask nothing more once a FAIL is certain, also in other tasks and plans.",
            flags=("--end-when-certain/--no-end-when-certain",),
        ),
    ] = None


@dataclass(frozen=True, kw_only=True)
class AddressOptions:
    """Name the endpoint, or the launcher that starts one."""

    title: ClassVar[str] = "Endpoint"
    base_url: Annotated[
        str | None,
        Setting(
            "host:port, .../v1 or a full URL (default OPENAI_BASE_URL, else localhost:8000).", "URL"
        ),
    ] = None
    launcher: Annotated[
        str | None,
        Setting(
            "Start the endpoint with this launcher; see serve-eval data list launchers.",
            "NAME",
            in_file=SPEC,
        ),
    ] = None
    rehearse: Rehearse = None
    gpus: Annotated[
        int | None,
        Setting(
            "GPUs of the servers, for the GPU seconds of the run (default: as the launcher knows).",
            "N",
            flag=False,
        ),
    ] = None


@dataclass(frozen=True, kw_only=True)
class ConnectionOptions:
    """Choose how requests reach the endpoint: the section `connection`."""

    title: ClassVar[str] = "Endpoint"
    api_key_env: ApiKeyEnv = None
    header: Header = None
    proxy: Proxy = None
    ca_bundle: CaBundle = None
    client_cert: ClientCert = None
    client_key: ClientKey = None
    client_key_password_env: ClientKeyPasswordEnv = None
    max_tokens_field: MaxTokensField = None
    send_media: SendMediaOption = None
    route: RouteOption = None
    conversation_id: ConversationId = None
    api_key: ApiKey = None


@dataclass(frozen=True, kw_only=True)
class FolderOptions:
    """Name the folder of the run, and choose what it keeps."""

    title: ClassVar[str] = "Output"
    output_dir: Annotated[
        str | None,
        Setting(
            "Run folder (default outputs/<time>_<model>). An existing run is resumed.",
            "DIR",
            flags=("--output-dir", "-o"),
        ),
    ] = None
    no_prompts: Annotated[
        bool | None,
        Setting("Keep no prompts in the run folder; serve-eval show then has none.", flag=False),
    ] = None
    no_media: Annotated[
        bool | None,
        Setting("Keep no images, sounds and videos of prompts in the run folder.", flag=False),
    ] = None


IN_A_PLAN = (
    AskedOptions,
    JudgedOptions,
    AddressOptions,
    ConnectionOptions,
    LimitsOptions,
    FolderOptions,
)
"""The structures whose options are top-level keys of a plan file; ProtocolOptions are below its key
`protocol`."""


def keys_in_file() -> Iterator[tuple[str, Declared]]:
    """Yield each key that a plan file may have, such as "limits.order", with its option."""
    for structure in IN_A_PLAN:
        for option in list_declared(structure):
            if option.setting.in_file is not None:
                yield option.key, option


def list_protocol_fields() -> tuple[str, ...]:
    """Return the fields of `protocol` in a plan file that every task takes."""
    return tuple(option.key for option in list_declared(ProtocolOptions))
