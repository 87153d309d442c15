"""Define a running endpoint, the servers behind it, and the proof of the promised path.

Launchers, the servers themselves and the run report the values. A value that is not reported is
None, and is not written.

A path is the way in which a deployment makes its answers: with a transfer of the KV cache, with
speculation, with a prefix cache, always in the same way.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterable, Mapping
from dataclasses import field, replace
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import msgspec
from msgspec import Struct

from serve_eval.frozen import freeze
from serve_eval.schema.plan import REHEARSAL, Plan


class DeployedServer(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A server of a deployment: its `role` behind an orchestrator, and what it reports of itself.

    `parallelism` has sizes by our short names (tp, pp, cp, ep). `config` is the content of the file
    that it was started with, and `server_info` the answer of its route of that name.
    """

    name: str
    url: str
    role: str | None = None
    version: str | None = None
    parallelism: Mapping[str, int] | None = None
    config: Mapping[str, Any] | None = None
    server_info: Mapping[str, Any] | None = None


class DeploymentInfo(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A deployment of trtllm-serve.

    `cluster_before` and `cluster_after` are the answers of an orchestrator's /cluster_info before
    the first and after the last request of a session; a single server has none.
    """

    workers: tuple[DeployedServer, ...]
    front_door: DeployedServer | None = None
    cluster_before: Mapping[str, Any] | None = None
    cluster_after: Mapping[str, Any] | None = None

    @property
    def disaggregated(self) -> bool:
        """True if there is an orchestrator."""
        return self.cluster_before is not None

    @property
    def servers(self) -> tuple[DeployedServer, ...]:
        """All servers, the front end first."""
        return self.workers if self.front_door is None else (self.front_door, *self.workers)


class KvTransfer(msgspec.Struct, frozen=True, kw_only=True):
    """The library that moves the KV cache from context to generation servers.

    `nvlink`: their GPUs have links (None: not known). `ucx_tls` are the transports given to UCX
    (None: its own choice).
    """

    backend: str
    nvlink: bool | None
    ucx_tls: str | None = msgspec.field(name="UCX_TLS")


class PerfMetricsFolders(msgspec.Struct, frozen=True, kw_only=True):
    """Folders in which an orchestrator writes its records of requests and its traces.

    They are paths as seen from here (None: not known). The orchestrator was also set to report in
    its answers how each request went.
    """

    output_dir: str | None = None
    trace_dir: str | None = None


class HeldServers(msgspec.Struct, frozen=True, kw_only=True):
    """The held servers that a run used: their id, the process that holds them, and since when."""

    id: str
    holder: int
    since: str


class PodContainer(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A container of a pod, as the cluster reports it when a session begins.

    `digest` names the image that runs (its imageID). `command` and `args` are those of the pod's
    manifest, without secrets; None means those of the image. `restarts` counts earlier restarts.
    """

    name: str
    image: str
    digest: str | None = None
    command: tuple[str, ...] | None = None
    args: tuple[str, ...] | None = None
    restarts: int = 0


class ServedPod(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A pod that answers the requests of a run, or works for one that does."""

    name: str
    namespace: str
    uid: str
    node: str | None = None
    containers: tuple[PodContainer, ...] = ()


class ServerInfo(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """The known facts about the servers behind an endpoint.

    They are recorded, shown and used for warnings, but never relied on. A launcher reports
    `launcher`, its name; the `commands` that it started; the addresses of its `servers` and their
    `logs`, both by name, in the folder `log_dir`; and for a server of ours its `pid`, its one
    `log_file`, its `damage` and that of `also`, further names of the model; and in `front_ends`, by
    name, the number of processes that share the port of a server, if it is above 1. For servers in
    a cluster it reports the `service` that is asked and its `pods`. The endpoint reports the
    `models` that it lists, the `server` that it is, and its `version`. The run adds `deployment`;
    `hidden_retries`, how often an orchestrator asked its servers again during the session, by their
    kind; `expects`, the parts of the path that the launcher promises; `disagreements`, warnings
    about options of servers that work together; and `meaningless`, the settings that servers tell
    under which answers do not follow from the model. `extra` has everything else that a user's
    launcher reports.
    """

    launcher: str | None = None
    commands: tuple[tuple[str, ...], ...] | None = None
    servers: Mapping[str, str] | None = None
    log_dir: str | None = None
    logs: Mapping[str, str] | None = None
    log_file: str | None = None
    pid: int | None = None
    damage: str | None = None
    also: Mapping[str, str] | None = None
    kv_transfer: KvTransfer | None = None
    perf_metrics: PerfMetricsFolders | None = None
    front_ends: Mapping[str, int] | None = None
    attached: HeldServers | None = None
    service: str | None = None
    pods: tuple[ServedPod, ...] | None = None
    models: tuple[str, ...] | None = None
    server: str | None = None
    version: str | None = None
    deployment: DeploymentInfo | None = None
    hidden_retries: Mapping[str, int] | None = None
    expects: tuple[str, ...] | None = None
    disagreements: tuple[str, ...] | None = None
    meaningless: tuple[str, ...] | None = None

    @property
    def workers(self) -> tuple[DeployedServer, ...]:
        """The servers of the deployment without its front end; empty if not known."""
        return () if self.deployment is None else self.deployment.workers

    @property
    def extra(self) -> dict[str, object]:
        """Values reported under names that are not ours."""
        fields = msgspec.structs.fields(self)
        return {
            one.encode_name: getattr(self, one.name) for one in fields if one.name not in _NAMES
        }

    @classmethod
    def read(cls, told: Mapping[str, object]) -> ServerInfo:
        """Return the information of a mapping.

        Raises TypeError, with its path, for a value that does not have the type of its name.
        """
        given: object = told
        if not isinstance(given, Mapping) or not all(isinstance(name, str) for name in given):
            raise TypeError(
                f"info of an endpoint: expected a ServerInfo or a mapping with names, not {told!r}"
            )
        try:
            return msgspec.convert(
                told, _with_extra(tuple(name for name in told if name not in _NAMES))
            )
        except msgspec.ValidationError as error:
            raise TypeError(f"info of an endpoint: {error}") from error

    def update(self, told: Mapping[str, object]) -> ServerInfo:
        """Return the information with additions. Raises TypeError as `read` does."""
        known = {name: getattr(self, name) for name in _NAMES}
        return self.read({**known, **self.extra, **told})


_NAMES = frozenset(ServerInfo.__struct_fields__)


@functools.lru_cache(maxsize=32)
def _with_extra(names: tuple[str, ...]) -> type[ServerInfo]:
    """Return the type with further fields.

    `extra` is thereby written next to the other fields.
    """
    if not names:
        return ServerInfo
    fields = {f"extra_{i}": name for i, name in enumerate(names)}
    made: Any = msgspec.defstruct(
        "ServerInfo",
        [(field, Any) for field in fields],
        bases=(ServerInfo,),
        rename=fields,
        frozen=True,
        kw_only=True,
        omit_defaults=True,
    )
    kind: type[ServerInfo] = made
    return kind


if TYPE_CHECKING:
    _Info = ServerInfo
else:
    # msgspec reads a mapping, which keeps the names of a user's launcher.
    _Info = Mapping[str, object]


@freeze
class Endpoint:
    """A running OpenAI-compatible endpoint.

    `base_url` ends before `/completions`. `info` is what is reported, and is never relied on. A
    mapping is accepted for `info` as well. Raises TypeError if one of its values does not have the
    type of its name.
    """

    base_url: str
    model: str | None = None
    info: _Info = field(default_factory=ServerInfo)

    def __post_init__(self) -> None:
        if not isinstance(self.info, ServerInfo):
            object.__setattr__(self, "info", ServerInfo.read(self.info))

    def with_info(self, **told: object) -> Endpoint:
        """Return the endpoint with more information on its servers, by the names of ServerInfo."""
        return replace(self, info=self.info.update(told))


AnswerFileWriter = Callable[[Path, Callable[[str, str], float]], None]
"""Function that writes the simulator's answer file to a path, given (task name, sample id) ->
probability of a right answer."""


@freeze
class LaunchContext:
    """The arguments of every launcher: the model's name, a log folder, and `write_answer_file`.

    That function is for launchers that simulate a model: it writes the right and a wrong answer to
    every prompt. `patience_s` is the longest time that the client waits for a sample. `notify`
    receives a line about what the launch waits for. `plan_file` is the plan in the form of its
    file, for `files` of launchers that show how to run serve-eval elsewhere; None if not known.
    """

    model: str | None
    log_dir: Path
    write_answer_file: AnswerFileWriter | None = None
    patience_s: float = 3600.0
    notify: Callable[[str], None] = lambda line: None
    plan_file: Mapping[str, object] | None = None


class PathClaim(StrEnum):
    """A part of the path that a plan or a launcher can promise.

    KV_TRANSFER: context servers process the prompts, and generation servers take over their KV
    cache. PREFIX_CACHE: tokens of prompts come from a prefix cache. SPECULATION: drafts become part
    of answers. DETERMINISTIC: the same prompt gets the same answer.
    """

    KV_TRANSFER = "kv_transfer"
    PREFIX_CACHE = "prefix_cache"
    SPECULATION = "speculation"
    DETERMINISTIC = "deterministic"


class ProofState(StrEnum):
    """The state of a claim. UNKNOWN: it does not show from outside."""

    PROVEN = "proven"
    REFUTED = "refuted"
    UNKNOWN = "unknown"


PathPromiser = Literal["plan", "launcher"]
"""The one who promises a part of a path: the plan, by name, or the launcher that starts it."""
NOT_PROVEN = "path not proven"
"""First words of the reason of a verdict whose path is not proven."""


class PathFinding(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """The finding about one claim.

    `evidence` is what showed, and `hint` says what would show more. `expected_by` is None for what
    nobody expects.
    """

    claim: PathClaim
    state: ProofState
    evidence: str
    hint: str = ""
    expected_by: PathPromiser | None = None

    @property
    def blocks(self) -> bool:
        """True if the path is not proven, so that the run has no verdict on what was deployed.

        A launcher's own expectation whose state is unknown does not block.
        """
        if self.expected_by is None or self.state is ProofState.PROVEN:
            return False
        return self.state is ProofState.REFUTED or self.expected_by == "plan"

    @property
    def reason(self) -> str:
        """The reason that a verdict gets."""
        told = f"{NOT_PROVEN}: {self.claim}: "
        if self.state is ProofState.REFUTED:
            return told + self.evidence
        return f"{told}does not show from outside: {self.evidence}. {self.hint}"


class RepeatedAnswers(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A comparison of answers to the same prompts, each asked again.

    `differ` of the `prompts` did not get the same answer each time; `example` is one of them.
    `failed` questions had no answer.
    """

    prompts: int
    differ: int
    failed: int = 0
    example: str = ""


REHEARSED = "REHEARSAL: the stand-in answered; this shows nothing about a model"
"""The first line of everything that a rehearsal prints or writes."""
STAND_IN = "+stand-in"
"""End of the version that the stand-in reports in a rehearsal, so that no client is deceived."""


def is_rehearsal(plan: Plan, endpoints: Iterable[Endpoint] = ()) -> bool:
    """Return True if the plan is a rehearsal's, or one of the endpoints was the stand-in."""
    return plan.launcher.name == REHEARSAL or any(
        is_stand_in(one.info.version) for one in endpoints
    )


def is_stand_in(version: object) -> bool:
    """Return True if the version that a server reports is that of the stand-in in a rehearsal."""
    return isinstance(version, str) and version.endswith(STAND_IN)
