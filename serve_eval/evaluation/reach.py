"""List the fields of a plan that run something or reach somewhere, for folders of other users.

Every field needs consent unless it is listed as harmless: a number, a size, a choice among words,
data read here. It is unknown what a launcher, task or verdict rule of the user's own does with an
option, so each of its options needs consent; its code runs only from folders that are named again
each time (see trust). `verdict`, `limits` and other fields of a plan that are not listed here reach
nothing.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import fields

from serve_eval.errors import ServeEvalError
from serve_eval.frozen import freeze
from serve_eval.plan.launcher import DEFAULT_BASE_URL
from serve_eval.plugins import registry
from serve_eval.protocol.shared import OPTIONS as CHOICES
from serve_eval.protocol.shared import build_task
from serve_eval.schema import Connection, DataRoots, Plan, Spec, Task, is_mutable
from serve_eval.storage.assessments import judges_of

LAUNCHERS, TASKS = "serve_eval.launchers", "serve_eval.tasks"
_TIMES = frozenset({"port", "ready_timeout_s", "answer_timeout_s", "stop_timeout_s"})
_SIZES = frozenset({"tp", "pp", "cp", "ep", "gpus"})
_SIMULATED = {
    "accuracy",
    "flip_rate",
    "seed",
    "run",
    "varied",
    "damage",
    "latency_s",
    "latency_jitter_s",
} | {
    *(
        "failure_rate",
        "failure_kind",
        "failures_per_prompt",
        "truncate_rate",
        "empty_rate",
        "crash_after",
    ),
    *(
        "context_tokens",
        "any_model",
        "strict_fields",
        "no_models",
        "no_chat",
        "no_completions",
        "no_images",
        "no_audio",
        "no_video",
        "any_media",
    ),
    *("no_guided", "no_tools", "prompt_logprobs", "tokens_per_step"),
    *("begins_with", "tells_beginning", "puts_beginning"),
}
_VLLM = {
    *("max_model_len", "dtype", "quantization", "tp", "block_size", "kv_cache_dtype"),
    *("prefix_caching", "eager", "tool_call_parser", "gpus"),
}
HARMLESS: Mapping[str, frozenset[str]] = {
    "external": frozenset({"ready_timeout_s", "perf_metrics"}),
    "simulated": frozenset(_SIMULATED),
    "embedded": frozenset(
        {"damage", "also", "strict_fields", "port", "cache_blocks", "host_blocks", "cache_fault"}
        | {"sampling_defaults"}
    ),
    "trtllm": _TIMES | _SIZES,
    "trtllm_disaggregated": _TIMES | {"gpus", "auth_key", "perf_metrics", "request_timeout_s"},
    "container": _TIMES | {"gpus", "engine", "shm_size", "ulimits"},
    "slurm": _TIMES | {"gpus_per_node"},
    "rehearsal": frozenset({"of"}),
    "kubernetes": frozenset(
        {"port", "address", "ready_timeout_s", "answer_timeout_s", "job_shards"}
    ),
    "llama_cpp": (
        _TIMES
        | {
            "gpus",
            "server",
            "context_tokens",
            "parallel",
            "threads",
            "gpu_layers",
            "prompt_logprobs",
        }
    ),
    "transformers_serve": _TIMES | {"gpus", "device", "dtype", "continuous_batching", "threads"},
    "vllm": _TIMES | _VLLM,
    "vllm_disaggregated": _TIMES | _VLLM | {"connector"},
}
"""Options of our launchers that run and reach nothing themselves. `device`, `dtype` and the like
are one word each."""
OPTIONS: Mapping[str, str] = {
    "options": "rehearse the launcher with",
    "perf_metrics_dir": "read what the orchestrator writes in",
    "request_trace_dir": "read the requests to the orchestrator in",
    "base_url": "send the prompts, and the key in {key}, to",
    "local_media": "read media in",
    "servers": "read the counters of",
    "command": "run",
    "extra_args": "hand to the server",
    "env": "set for the server",
    "pass_env": "hand on the variables",
    "config": "configure the server with",
    "model": "load",
    "backend": "choose the engine",
    "host": "listen on",
    "bind": "listen on",
    "weights": "load",
    "context_servers": "start",
    "generation_servers": "start",
    "trtllm": "start",
    "trtllm_disaggregated": "start",
    "orchestrator": "configure the orchestrator with",
    "cache_transceiver": "move the cache by",
    "connector_config": "move the cache by",
    "kv_folder": "write the cache of the prompts below",
    "speculative": "configure speculative decoding with",
    "discovery": "let servers register with",
    "image": "run the image",
    "container": "run the container",
    "mounts": "mount",
    "mount_paths": "mount the paths on the command line:",
    "network": "use the network",
    "ipc": "share",
    "user": "run as",
    "run_args": "hand to the container engine",
    "kubeconfig": "run the credential plugins, and use the clusters, of",
    "context": "use the cluster of the context",
    "namespace": "use the namespace",
    "service": "send the prompts, and the key in {key}, to the service",
    "also_watch": "read the logs of the pods with the labels",
    "job_image": "write into the manifest of a job the image",
    "job_claim": "write into the manifest of a job the volume claim",
    "job_data_claim": "write into the manifest of a job the volume claim",
    "job_secret": "write into the manifest of a job the secret",
    "nodes": "use the nodes",
    "mpi": "hand to srun as --mpi",
    "wrapper": "run",
    "srun_args": "hand to srun",
    "sbatch_args": "write into the job script",
}
"""Actions of the other options of our launchers."""
QUIET = ("external", "simulated", "embedded")
"""Launchers that start nothing, or only our own server on the loopback interface."""
ATTACHING = "kubernetes"
"""Launcher that uses servers which run already, with the user's credentials."""
CONNECTION: Mapping[str, str] = {
    "api_key_env": "read the variable and send it as the key:",
    "headers": "send{variables}",
    "proxy": "send everything{variables} through",
    "ca_bundle": "trust the certificates of",
    "client_cert": "show the certificate of",
    "client_key": "read the key of",
    "client_key_password_env": "read the variable with the password of the key:",
}
USUAL, WITHOUT_KEY = Connection(), Connection(api_key_env="")
"""Default connections of an endpoint and of a judge."""
HARMLESS_CONNECTION = ("max_tokens_field", "send_media", "route", "conversation_id")
ASKING_FIELDS = ("launcher", "tasks", "connection", "allow_hub")
"""Fields of a plan that need consent, or that have parts which do."""
ANEW_FIELDS = ("include_path", "allow_code_execution")
"""Fields never taken from a saved plan: the user names them each time, also for their own
folder."""
HARMLESS_FIELDS = (
    *(
        "model",
        "verdict",
        "rule_named",
        "reference_model",
        "accuracy_spec",
        "dataset_roots",
        "references_dir",
        "samples",
        "samples_of",
        "limit",
        "shard",
        "gpus",
        "end_when_certain",
        "repeats",
    ),
    *(
        "repeats_of",
        "seed",
        "no_reference",
        "no_prompts",
        "no_media",
        "allow_missing_reference",
        "allow_mismatch",
        "allow_meaningless",
        "integration_test",
    ),
    *("early_stop", "accept_identical", "limits", "expect", "server_defaults", "preset"),
)
JUDGED_BY = ("cases.path", "cases.scorer", "requests.scorer")
"""Options of our tasks that may name judges, whose addresses and keys need consent."""
ASKING_OPTIONS: Mapping[str, str] = {"lm_eval.data_files": "read, as its package does,"}
"""Options of our tasks that need consent. All others hold questions, or name what is read here."""
HARMLESS_OPTIONS = frozenset(
    {"cases.group", "cases.prompt", "cases.system_messages", "mmmu.subjects", "longbench_v1.sets"}
    | {"tool_calls.kinds", "covost2.lang_pair", "livecodebench.start_date"}
    | {"livecodebench.end_date", "long_context.kinds", "long_context.lengths"}
    | {"long_context.sizes", "bfcl.categories"}
    | {
        "longbench_v1.prompts",
        "perplexity.files",
        "lm_eval.metric",
        "lm_eval.filter",
        "lm_eval.prefix",
        "requests.path",
        "requests.mask_fields",
        "requests.mask_patterns",
    }
)
"""Texts and lists among our tasks' options that are sent with the prompts, or that name files which
are.

They go where the prompts go, which needs consent.
"""
HARMLESS_CHOICES = frozenset(
    {
        "system_prompt",
        "stop",
        "extra_body",
        "tokenizer",
        "template_date",
        "thinking",
        "acceptance_length",
        "history_thoughts",
    }
)
"""Harmless options of every task. A chat template is rendered in a sandbox."""
_VARIABLE = re.compile(r"\$\{([A-Za-z_][A-Za-z0-9_]*)\}")


@freeze
class Reached:
    """A field as flags and --set name it, the action it would cause, and its value."""

    field: str
    does: str
    value: object


def list_reached(plan: Plan) -> list[Reached]:
    """Return everything in a plan that runs something or reaches somewhere."""
    found = [*_by_launcher(plan), *_by_connection("connection", plan.connection)]
    for spec in plan.tasks:
        found += _by_task(spec)
    if plan.allow_hub:
        found.append(
            Reached(
                field="allow_hub", does="download data sets from the Hugging Face hub:", value=True
            )
        )
    return found


def _by_launcher(plan: Plan) -> Iterator[Reached]:
    name, options = plan.launcher.name, plan.launcher.options
    ours = name in registry.list_shipped(LAUNCHERS)
    if name not in QUIET or not ours:
        does = "reach a cluster" if name == ATTACHING and ours else "start servers"
        yield Reached(field="launcher", does=f"{does} with the launcher", value=name)
    if name == "external":
        options = {"base_url": DEFAULT_BASE_URL, **options}
    for option, value in options.items():
        if not (ours and option in HARMLESS.get(name, ())):
            does = OPTIONS.get(option, "use") if ours else "use"
            key = plan.connection.api_key_env
            text = does.format(key=key) if key else does.replace(", and the key in {key},", "")
            yield Reached(field=f"launcher.{option}", does=text, value=value)


def _by_connection(
    where: str, connection: Connection, usual: Connection = USUAL
) -> Iterator[Reached]:
    for one in fields(Connection):
        value = getattr(connection, one.name)
        if one.name in HARMLESS_CONNECTION or not value or value == getattr(usual, one.name):
            continue
        texts = value.values() if isinstance(value, Mapping) else [str(value)]
        names = dict.fromkeys(name for text in texts for name in _VARIABLE.findall(text))
        variables = f", with the value of {' and '.join(names)}," if names else ""
        does = CONNECTION.get(one.name, "use").format(variables=variables)
        yield Reached(field=f"{where}.{one.name}", does=does, value=value)


def _by_task(spec: Spec) -> Iterator[Reached]:
    family = spec.name.partition(":")[0]
    ours = family in registry.list_shipped(TASKS)
    for option, value in spec.options.items():
        if not ours and option not in CHOICES:
            yield Reached(field=f"{spec.name}.{option}", does="use", value=value)
        elif ours and f"{family}.{option}" in ASKING_OPTIONS:
            does = ASKING_OPTIONS[f"{family}.{option}"]
            yield Reached(field=f"{spec.name}.{option}", does=does, value=value)
    if ours and is_mutable(spec.name):
        yield from _by_judges(spec)


def _by_judges(spec: Spec) -> Iterator[Reached]:
    """Yield the fields of a task's judges.

    Reads the task's cases. Ignores a problem in them, which is reported when they are used.
    """
    try:
        task: Task = build_task(spec)
        judges = (
            [judge for judge, _ in judges_of(task, task.load(DataRoots(), 1).samples)]
            if task.questions
            else []
        )
    except ServeEvalError:
        return
    for judge in judges:
        where = f"{spec.name}.scorer, judge {judge.name}"
        if judge.base_url is not None:
            key = judge.connection.api_key_env
            what = f"send the answers{f', and the key in {key},' if key else ''} to"
            yield Reached(field=f"{where}.base_url", does=what, value=judge.base_url)
            yield from _by_connection(where, judge.connection, WITHOUT_KEY)
