"""Declare every option of a plan once: flag, variable, key of the plan file, type and meaning.

The command line derives its flags from these structures, one panel of the help for each (see
cli/_options.py), and plan/parse.py the keys of a plan file with their types. Commands that take a
part of them have structures of their own out of the same options. Nothing here imports the nouns of
a plan: `--help` does not wait for them.
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
    """Choose the model, the tasks and their samples."""

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
            "Ask every sample N times (default 1, or as its case file says) and average; the report"
            " says how stable answers are.",
            flags=("--repeats", "--iterations"),
            metavar="N",
            in_file=int | dict[str, int],
        ),
    ] = None
    seed: Seed = None
    settings: Set = None


@dataclass(frozen=True, kw_only=True)
class ProtocolOptions:
    """Choose the protocol of all tasks: what the plan file has under `protocol`."""

    title: ClassVar[str] = "By which protocol, for every task"
    apply_chat_template: Annotated[
        bool | None,
        Setting(
            "Ask by chat, or by plain text.",
            flags=("--apply-chat-template/--no-apply-chat-template",),
        ),
    ] = None
    tokenizer: Annotated[
        str | None,
        Setting(
            "Folder with the chat template, to render it here; for likelihoods, with the first"
            " token.",
            metavar="DIR",
            parse=flag_values.absolute,
        ),
    ] = None
    system_prompt: Annotated[
        str | None,
        Setting("A system turn; without chat, a text before each prompt.", metavar="TEXT"),
    ] = None
    num_fewshot: Annotated[int | None, Setting("Worked examples in each prompt.", metavar="N")] = (
        None
    )
    fewshot_as_multiturn: Annotated[
        bool | None,
        Setting(
            "Each example as two turns of the chat.",
            flags=("--fewshot-as-multiturn/--no-fewshot-as-multiturn",),
        ),
    ] = None
    thinking: Annotated[
        str | None, Setting("on or off: enable_thinking in chat_template_kwargs.", metavar="on|off")
    ] = None
    max_tokens: Annotated[int | None, Setting("Most tokens of an answer.", metavar="N")] = None
    temperature: Annotated[
        float | None, Setting("0 is greedy, as most tasks ask.", metavar="T")
    ] = None
    top_p: Annotated[
        float | None, Setting("Share of the probability to sample from.", metavar="P")
    ] = None
    sampling_seed: Annotated[
        int | None,
        Setting("The request's seed; --seed is that of the subset.", metavar="N", key="seed"),
    ] = None
    extra_body: Annotated[
        str | None,
        Setting(
            "Further fields of every request, as a JSON object.",
            metavar="JSON",
            parse=flag_values.json_object,
        ),
    ] = None
    suite_exact: Annotated[
        bool | None,
        Setting(
            "Follow the original suite in its accidents too.",
            flags=("--suite-exact/--no-suite-exact",),
        ),
    ] = None


@dataclass(frozen=True, kw_only=True)
class JudgedOptions:
    """Choose the reference and the verdict rule."""

    title: ClassVar[str] = "How it is judged"
    reference_model: ReferenceModel = None
    dtype: Annotated[
        str | None,
        Setting(
            "Data type that the reference is matched on (default auto).",
            metavar="TYPE",
            key="accuracy_spec.dtype",
        ),
    ] = None
    quant_algo: Annotated[
        str | None,
        Setting(
            "Quantization that the reference is matched on: FP8, NVFP4, ...",
            metavar="NAME",
            key="accuracy_spec.quant_algo",
        ),
    ] = None
    kv_cache_quant_algo: Annotated[
        str | None,
        Setting(
            "The same of the KV cache.", metavar="NAME", key="accuracy_spec.kv_cache_quant_algo"
        ),
    ] = None
    spec_dec_algo: Annotated[
        str | None,
        Setting(
            "Speculative decoding that the reference is matched on: MTP, Eagle, ...",
            metavar="NAME",
            key="accuracy_spec.spec_dec_algo",
        ),
    ] = None
    extra_acc_spec: Annotated[
        str | None,
        Setting(
            "Further words that the reference is matched on.",
            metavar="TEXT",
            key="accuracy_spec.extra_acc_spec",
        ),
    ] = None
    references_dir: ReferencesDir = None
    no_reference: NoReference = None
    allow_missing_reference: Annotated[
        bool | None, Setting("Judge where a reference applies, else print the value.")
    ] = None
    allow_mismatch: AllowMismatch = None
    verdict: VerdictRuleName = None
    margin: Margin = None
    early_stop: Annotated[
        bool | None,
        Setting(
            "Stop when the verdict is as good as certain.",
            flags=("--early-stop/--no-early-stop",),
            in_file=bool | float,
        ),
    ] = None
    early_stop_eps: Annotated[
        float | None,
        Setting(
            "Early stop with this probability of another verdict (default .01); under a rule that"
            " compares pairs, of too many missing answers: its error is its alpha.",
            metavar="P",
            key="early_stop",
            in_file=None,
        ),
    ] = None


@dataclass(frozen=True, kw_only=True)
class AddressOptions:
    """Name the endpoint, or the launcher that starts one."""

    title: ClassVar[str] = "How the endpoint is reached"
    base_url: Annotated[
        str | None,
        Setting(
            "host:port, .../v1 or a full path (default OPENAI_BASE_URL, else localhost:8000).",
            metavar="URL",
        ),
    ] = None
    launcher: Annotated[
        str | None,
        Setting("Start the endpoint: see serve-eval list launchers.", metavar="NAME", in_file=SPEC),
    ] = None


@dataclass(frozen=True, kw_only=True)
class ConnectionOptions:
    """Choose how requests get to the endpoint: the section `connection`."""

    title: ClassVar[str] = "How the endpoint is reached"
    api_key_env: ApiKeyEnv = None
    header: Header = None
    proxy: Proxy = None
    ca_bundle: CaBundle = None
    max_tokens_field: MaxTokensField = None
    api_key: ApiKey = None


@dataclass(frozen=True, kw_only=True)
class FolderOptions:
    """Name the folder of the run."""

    title: ClassVar[str] = "What is written"
    output_dir: Annotated[
        str | None,
        Setting(
            "Run folder (default outputs/<time>_<model>). A run that is there goes on.",
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
"""The structures whose options are keys of a plan file; those of ProtocolOptions stand below its
key `protocol`."""


def keys_in_file() -> Iterator[tuple[str, Declared]]:
    """Yield each key that a plan file may have, such as "limits.order", with the option that it
    stands for.
    """
    for structure in IN_A_PLAN:
        for option in list_declared(structure):
            if option.setting.in_file is not None:
                yield option.key, option
