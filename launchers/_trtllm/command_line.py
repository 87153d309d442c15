"""Write command lines and config files of trtllm-serve, and read the address that it reports.

Pure, except for config files that a plan names and the port that a server reports.
"""

from __future__ import annotations

import shlex
from collections.abc import Mapping, Sequence
from dataclasses import field
from pathlib import Path
from typing import Any

from serve_eval.errors import PlanError
from serve_eval.frozen import freeze
from serve_eval.launchers._logs.causes import TRTLLM
from serve_eval.launchers._machine import hosts
from serve_eval.schema import PerfMetricsFolders

PARALLEL = {
    "tp": "tensor_parallel_size",
    "pp": "pipeline_parallel_size",
    "cp": "context_parallel_size",
    "ep": "moe_expert_parallel_size",
}
"""Our short names, which are also the portable flags (`--tp_size`), and the keys of the config
file."""
KV_CACHE = {
    "free_gpu_memory_fraction": "free_gpu_memory_fraction",
    "kv_cache_free_gpu_memory_fraction": "free_gpu_memory_fraction",
    "kv_cache_dtype": "dtype",
}
"""Flags whose value is in the config under kv_cache_config."""
FRONT_ENDS = "num_serve_frontends"
"""Flag, and key of the config, for the number of processes that share a server's port."""
OURS = (
    "--host",
    "--port",
    "--config",
    "--extra_llm_api_options",
    "--server_role",
    "--disagg_cluster_uri",
    "--backend",
)
"""Flags that `extra_args` must not contain: the launcher has to know their values."""


@freeze
class Place:
    """The address and GPUs of a server, which binds `host` and `port`.

    `address` is the host under which others reach it (None: as from the same machine).
    """

    host: str
    port: int
    gpus: tuple[str, ...] = ()
    address: str | None = None

    @property
    def reached_at(self) -> str:
        return self.address or loopback(self.host)


@freeze
class Server:
    """One process to start.

    `name` is also the name of its log. `probe` is a command that lists its flags with --help,
    mostly the beginning of `argv`. `env` overrides inherited variables (None removes one);
    `pass_env` names further variables to inherit. `files` are written and `folders` created before
    the start, for this user alone. `perf_metrics` is for the endpoint's info.

    `here` means that it uses ports and GPUs of this machine, which are then checked and locked.
    `at_end` is a command that ends what outlives the process, such as a container. `to_stop` is a
    command that asks it to end, if SIGTERM for the process is not the way. `image` is the container
    image with trtllm-serve. `options_at` is the position in `argv` at which the options of
    trtllm-serve begin (None: after as many words as `probe` has). `health` is the path that answers
    200 once it is up. `engine` is the one whose causes and remedies fit its log.

    `further_ports` are bound at the same host. `front_ends` is the number of processes that are to
    share the port, each with counters of its own (None: the version's default).

    Some fields depend on the version. `report` is the file in which a server that finds a port
    itself reports it, used only if no port was chosen. `auth_key` means that its files get the key
    of the launch (None: if its version has one). `refused` maps options to what a version that has
    them does not do.
    """

    name: str
    argv: tuple[str, ...]
    probe: tuple[str, ...]
    place: Place
    env: Mapping[str, str | None] = field(default_factory=dict)
    pass_env: tuple[str, ...] = ()
    files: Mapping[Path, str] = field(default_factory=dict)
    folders: tuple[Path, ...] = ()
    perf_metrics: PerfMetricsFolders | None = None
    here: bool = True
    at_end: tuple[str, ...] = ()
    to_stop: tuple[str, ...] = ()
    image: str | None = None
    options_at: int | None = None
    health: str = "/health"
    further_ports: tuple[int, ...] = ()
    front_ends: int | None = None
    report: Path | None = None
    auth_key: bool | None = False
    refused: Mapping[str, str] = field(default_factory=dict)
    engine: str = TRTLLM

    @property
    def options(self) -> tuple[str, ...]:
        """The words of `argv` that trtllm-serve itself reads after its subcommand."""
        return self.argv[len(self.probe) if self.options_at is None else self.options_at :]

    def line(self) -> list[str]:
        """Return the command line with its environment, ready to paste."""
        removed = [
            word for name, value in self.env.items() if value is None for word in ("-u", name)
        ]
        changed = [
            *removed,
            *(f"{name}={value}" for name, value in self.env.items() if value is not None),
        ]
        return [*(["env", *changed] if changed else []), *self.argv]

    @property
    def url(self) -> str:
        """The address for a client; with port 0 until the server has reported its port."""
        port = self.place.port or (read_reported_port(self.report) if self.report else None) or 0
        return f"http://{hosts.authority(self.place.reached_at, port)}"


def loopback(host: str) -> str:
    """Return the host under which a server that binds `host` is reached from this machine."""
    if host == "::":
        return "::1"
    return "127.0.0.1" if host in ("0.0.0.0", "") else host  # noqa: S104 - compared, not bound


def words(command: str | Sequence[str]) -> tuple[str, ...]:
    """Return the executable or command prefix as words. Raise PlanError if there are none."""
    try:
        found = tuple(shlex.split(command)) if isinstance(command, str) else tuple(command)
    except ValueError as error:
        raise PlanError(f"launcher.command: {error}") from error
    if not found:
        raise PlanError("launcher.command: name an executable, such as trtllm-serve")
    return found


def read_config(config: str | Mapping[str, Any] | None, where: str) -> dict[str, Any]:
    """Return the content of a config, a mapping or the path of a YAML file.

    Raises PlanError if it is not a mapping.
    """
    import yaml

    if config is None or isinstance(config, Mapping):
        return dict(config or {})
    path = Path(config).expanduser()
    try:
        content = yaml.safe_load(path.read_text(encoding="utf-8"))
    except (OSError, UnicodeError, yaml.YAMLError) as error:
        raise PlanError(f"{where}: {path} cannot be read: {error}") from error
    if not isinstance(content, dict):
        raise PlanError(f"{where}: {path} is not a YAML mapping")
    return content


def to_yaml(content: Mapping[str, Any]) -> str:
    """Return the text of a config file, with its keys in the given order."""
    import yaml

    text: str = yaml.safe_dump(dict(content), sort_keys=False)
    return text


def once(given: Mapping[str, Any], config: Mapping[str, Any], where: str) -> dict[str, Any]:
    """Return values that can be an option or in the config file, by our name.

    These are the options that are not None, then the config. Raises PlanError if they differ,
    because versions differ in which of the two wins.
    """
    found: dict[str, Any] = {}
    for name, value in given.items():
        key = PARALLEL.get(name, name)
        in_file = config.get(key)
        if value is not None and in_file is not None and value != in_file:
            raise PlanError(
                f"{where}: {name} is {value} and {key} in the config is {in_file}",
                hint="Versions differ in which of the two wins: give it in one place only.",
            )
        found[name] = in_file if value is None else value
    return found


def width(parallel: Mapping[str, Any], where: str) -> int:
    """Return the number of GPUs that a server needs. Raise PlanError for a size below 1."""
    sizes = {name: 1 if parallel[name] is None else parallel[name] for name in ("tp", "pp", "cp")}
    for name, size in sizes.items():
        if not isinstance(size, int) or size < 1:
            raise PlanError(
                f"{where}: {name} is {size}; it is a number of GPUs and must be 1 or more"
            )
    return int(sizes["tp"] * sizes["pp"] * sizes["cp"])


def serve(
    command: Sequence[str],
    model: str,
    *,
    host: str,
    port: int,
    options: Mapping[str, Any],
    config: Mapping[str, Any],
    config_file: Path | None,
    role: str | None = None,
    extra_args: Sequence[str] = (),
    where: str = "launcher",
) -> tuple[str, ...]:
    """Return the words of `trtllm-serve serve`, without options that the config contains.

    Raises PlanError for extra arguments that the launcher sets or that are also in the config.
    """
    for argument in extra_args:
        flag = argument.partition("=")[0]
        if flag == "--set":
            raise PlanError(
                f"{where}.extra_args: --set: the launcher has to know what it sets: put it into"
                " config"
            )
        if in_config := _in_config(flag, config):
            raise PlanError(
                f"{where}: {flag} is in extra_args, and {in_config} is in the config",
                hint="Versions differ in which of the two wins: give it in one place only.",
            )
        if flag in OURS or flag in [f"--{name}_size" for name in PARALLEL] + [
            f"--{key}" for key in PARALLEL.values()
        ]:
            raise PlanError(
                f"{where}.extra_args: {flag} is an option of the launcher: set that instead"
            )
    argv = [*command, "serve", model, "--host", host, "--port", str(port)]
    for name, value in options.items():
        if value is not None and PARALLEL.get(name, name) not in config:
            argv += [f"--{name}_size" if name in PARALLEL else f"--{name}", str(value)]
    if config_file is not None:
        argv += ["--config", str(config_file)]
    if role is not None:
        argv += ["--server_role", role]
    return (*argv, *extra_args)


def count_front_ends(extra_args: Sequence[str], config: Mapping[str, Any]) -> int | None:
    """Return the number of processes that are to share a server's port; None if nothing sets it."""
    given = value_of(f"--{FRONT_ENDS}", extra_args) or str(config.get(FRONT_ENDS, ""))
    return int(given) if given.isdecimal() else None


def value_of(flag: str, extra_args: Sequence[str]) -> str | None:
    """Return the last value of a flag among further arguments."""
    found = None
    for i, word in enumerate(extra_args):
        name, equals, value = word.partition("=")
        if name == flag:
            found = value if equals else "".join(extra_args[i + 1 : i + 2])
    return found or None


def _in_config(flag: str, config: Mapping[str, Any]) -> str | None:
    """Return the key of the config that has the same meaning as a flag, if it is there."""
    name = flag.removeprefix("--")
    within = config.get("kv_cache_config")
    if name in KV_CACHE and isinstance(within, Mapping) and KV_CACHE[name] in within:
        return f"kv_cache_config.{KV_CACHE[name]}"
    return name if flag != name and name in config else None


def read_reported_port(report: Path) -> int | None:
    """Return the port of HOST:PORT in the file; None until it is there."""
    try:
        number = int(report.read_text().strip().rpartition(":")[2])
    except (OSError, ValueError):
        return None
    return number if 0 < number < 65536 else None
