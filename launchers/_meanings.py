"""The meaning of each option of our launchers, in a line, for `serve-eval list launchers NAME`.

A launcher's file has them as MEANINGS, by the option's name or, where another option of that name means something else,
by its dotted path. A test fails for an option without one.
"""

from __future__ import annotations

from collections.abc import Mapping

LIMITS = {
    "ready_timeout_s": "How many seconds the servers may take to load.",
    "answer_timeout_s": "How many seconds the first completion may take.",
    "stop_timeout_s": "How many seconds lie between SIGTERM and SIGKILL when the servers are ended.",
}
PLACE = {
    "host": "The address that the front door binds.",
    "port": "The port of the front door. Not set: a free one.",
}
GPUS = {
    "gpus": "GPUs by number or UUID, as in [0, 1], or auto, which takes free ones. Not set: those of "
    "CUDA_VISIBLE_DEVICES, else the first ones.",
}
VARIABLES = {
    "env": "Variables that servers get; null removes one. No secrets.",
    "pass_env": "Names of variables of yours that servers get besides those of docs/trust.md.",
}
PARALLEL = {
    "tp": "Tensor parallelism: the number of GPUs that share every layer. Not set: the version's own, 1.",
    "pp": "Pipeline parallelism: the number of groups of GPUs that share out the layers.",
    "cp": "Context parallelism: the number of groups of GPUs that share a prompt.",
    "ep": "Expert parallelism: the number of GPUs that share the experts.",
}
SERVED = {
    "model": "What is loaded: a name of the hub, or a folder. Not set: the plan's model.",
    **PARALLEL,
    "backend": "The --backend of trtllm-serve. Not set: the version's own.",
    "config": "A YAML file of LlmArgs, or its content as a mapping.",
    "extra_args": "Further words of the command line. What has an option or stands in the config is refused.",
    **VARIABLES,
    "command": "The executable, or all that stands before serve.",
}
SIDES = {
    "context_servers": "The servers that read prompts.",
    "generation_servers": "The servers that generate.",
    "num_instances": "How many of these servers there are.",
    "router": "How the orchestrator chooses among these servers: a type, or a mapping that has one.",
    "cache_transceiver": "The cache_transceiver_config of both sides, unless both configs have the same.",
    "discovery": "The servers register with the orchestrator, or with an etcd (etcd://HOST:PORT).",
    "auth_key": "The servers share a key that is drawn for the launch. Not set: where their version has one.",
    "orchestrator": "Further keys of the orchestrator's file.",
    "perf_metrics": "The report says which server had which request. Some versions write prompts down for it.",
    "request_timeout_s": "The orchestrator's limit for a request in seconds. Not set: twice the client's, or 7200.",
}
WHAT = {
    "trtllm": "One server is started, with these options of the launcher trtllm.",
    "trtllm_disaggregated": "Servers and their orchestrator are started, with these options of trtllm_disaggregated.",
}
IMAGE = {
    "image": "The name of the image. Pull it before.",
    "engine": "What runs the containers.",
    "mounts": "What is mounted besides: SOURCE:TARGET[:OPTIONS], by full paths.",
    "mount_paths": "Full paths on the servers' command lines are mounted under their own path, read-only.",
    "ipc": "The --ipc of the engine.",
    "shm_size": "The --shm-size of the engine. It needs another ipc than host.",
    "ulimits": "The --ulimit of the engine, by name.",
    "user": "The user in the container. Not set: the image's.",
    "run_args": "Further options of the engine's run.",
}
OF_CONTAINER = "Variables of yours that go into the container, by name; their values stand on no command line."
ENGINE = {
    **LIMITS,
    **PLACE,
    **VARIABLES,
    "gpus": "GPUs by number or UUID, as in [0, 1], or auto, which takes a free one. Not set: what is inherited, and no "
    "lock.",
    "extra_args": "Further words of the command line. A flag that the launcher sets is refused.",
}

TRTLLM: Mapping[str, str] = {**SERVED, **GPUS, **PLACE, **LIMITS}
DISAGGREGATED: Mapping[str, str] = {**TRTLLM, **SIDES}
CONTAINER: Mapping[str, str] = {
    **DISAGGREGATED,
    **WHAT,
    **IMAGE,
    "network": "The network of the containers. Another one than the host's is for one server, and publishes its port.",
    "pass_env": OF_CONTAINER,
}
SLURM: Mapping[str, str] = {
    **DISAGGREGATED,
    **WHAT,
    **IMAGE,
    "nodes": "Names of nodes of the job. Not set: all of them.",
    "gpus_per_node": "How many GPUs each node has. Not set: what SLURM says, else 8.",
    "mpi": "The --mpi of srun for the servers.",
    "wrapper": "What starts the ranks; empty: none. Not set: trtllm-llmapi-launch for servers of several nodes.",
    "container": "The image that the steps run in. Not set: none.",
    "container.engine": "What runs the containers: pyxis, the plug-in of SLURM, or docker or podman within the step.",
    "container.mounts": "What is mounted besides: SOURCE:TARGET[:FLAGS], by full paths.",
    "container.pass_env": OF_CONTAINER,
    "workdir": "The folder in which the servers start, with pyxis.",
    "args": "Further options of pyxis, such as --container-writable.",
    "srun_args": "Further options of the steps.",
    "sbatch_args": "Further options in the job script that is shown.",
    "bind": "Servers bind the name of their node, or every address.",
    "port": "The port of the front door; the servers have the next ones. Not set: drawn from 10000 to 29999.",
}
LLAMA_CPP: Mapping[str, str] = {
    **ENGINE,
    "model": "The GGUF file. Not set: the plan's model is its path.",
    "server": "llama.cpp's own llama-server, or the server of llama-cpp-python.",
    "command": "The executable, or all that stands before the flags. Not set: llama-server, or python3 -m "
    "llama_cpp.server.",
    "context_tokens": "The longest prompt with its answer, in tokens. Not set: that of the model.",
    "parallel": "How many requests llama-server works on together.",
    "threads": "How many threads compute. Not set: the server's own.",
    "gpu_layers": "How many layers lie on the GPU. Not set: the server's own.",
    "prompt_logprobs": "The server of llama-cpp-python gives log-probabilities of prompts, which takes memory.",
}
TRANSFORMERS: Mapping[str, str] = {
    **ENGINE,
    "model": "A folder, or a name of the hub. Not set: the plan's model.",
    "command": "What stands before serve.",
    "device": "The --device, such as cpu or cuda. Not set: the server's own.",
    "dtype": "The --dtype, such as bfloat16. Not set: the server's own.",
    "continuous_batching": "Requests are answered together, and not one after the other.",
    "threads": "OMP_NUM_THREADS. Not set: as inherited.",
}
EXTERNAL: Mapping[str, str] = {
    "base_url": "Where the endpoint is, such as http://localhost:8000/v1.",
    "ready_timeout_s": "How many seconds it is waited for until it answers; 0: not at all.",
    "perf_metrics": "Ask an orchestrator to tell in its answers how each request went.",
    "perf_metrics_dir": "Its perf_metrics_output_dir, as seen from here. Asks for the same.",
    "request_trace_dir": "Its TRTLLM_REQUEST_TRACE_DIR, as seen from here. Asks for the same.",
}
EMBEDDED: Mapping[str, str] = {
    "weights": "A folder with other weights, in the layout of the hub. Not set: those that ship.",
    "damage": "To how few bits the linear layers are rounded, for real.",
    "also": "Further names of the same weights, each with its damage, as in {damaged: int3}.",
    "strict_fields": "Fields of a request that are not known are refused.",
    "port": "The port on 127.0.0.1. Not set: a free one.",
}
SIMULATED: Mapping[str, str] = {
    "accuracy": "The probability of a right answer: one number, or one by task.",
    "flip_rate": "The share of the prompts that two runs judge differently. Not set: each prompt is drawn alone.",
    "seed": "Of the draws: which prompts are answered right, fail, and so on.",
    "run": "Two runs with the same seed and another number here differ as flip_rate says.",
    "varied": "A repeated prompt may get another answer.",
    "damage": "The share of the right answers that are lost.",
    "latency_s": "How many seconds an answer takes.",
    "latency_jitter_s": "Up to how many seconds more it takes.",
    "failure_rate": "The share of the prompts whose requests fail.",
    "failure_kind": "How they fail: with a status, without an answer, or with a body that holds none.",
    "failures_per_prompt": "How often each of them fails before it is answered; 0: always.",
    "truncate_rate": "The share of the answers that lose half of their words.",
    "empty_rate": "The share of the answers that are empty.",
    "crash_after": "The process ends at the first request after so many.",
    "context_tokens": "The most tokens of a prompt and max_tokens together.",
    "any_model": "Every name of a model is accepted.",
    "strict_fields": "Fields of a request that are not known are refused.",
    "no_models": "There is no /v1/models.",
    "no_chat": "There is no /v1/chat/completions.",
    "no_completions": "There is no /v1/completions.",
    "no_images": "Images are refused.",
    "no_guided": "response_format is ignored.",
    "no_tools": "Tools are ignored.",
    "prompt_logprobs": "The form in which log-probabilities of prompts are given.",
    "begins_with": "The token that begins a text.",
    "tells_beginning": "The server that is imitated in telling that token.",
    "puts_beginning": "The server puts that token before each prompt itself.",
    "tokens_per_step": "What each answer reports of speculative decoding. Not set: nothing.",
}
