"""Gather the facts that prove a path: the deployed servers, and what each of them did."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import field
from itertools import pairwise
from pathlib import Path
from typing import Any, NamedTuple

from serve_eval.frozen import freeze
from serve_eval.schema import (
    Acceptance,
    DeployedServer,
    Endpoint,
    EngineCounts,
    EngineReport,
    ProofState,
    RepeatedAnswers,
    ServerCounts,
    ServerInfo,
    TaskReport,
)
from serve_eval.schema.base_url import authority
from serve_eval.storage.answer_origins import Served

FRONT, SERVER = "orchestrator", "server"
SIZES = {
    "tp": ("--tp_size", "tensor_parallel_size"),
    "pp": ("--pp_size", "pipeline_parallel_size"),
    "cp": ("--cp_size", "context_parallel_size"),
    "ep": ("--ep_size", "moe_expert_parallel_size"),
}
"""Parallel sizes by our short names: the flag of trtllm-serve, and the key of its config."""
ROLES = {"context_servers": "context", "generation_servers": "generation"}


def list_registered(cluster: Mapping[str, Any] | None) -> list[DeployedServer]:
    """Return the servers that an orchestrator lists: none if their addresses are in a file."""
    workers = (cluster or {}).get("current_workers")
    found = []
    for kind, role in ROLES.items():
        listed = workers.get(kind) if isinstance(workers, Mapping) else None
        for i, one in enumerate(listed if isinstance(listed, list) else ()):
            if isinstance(one, Mapping) and "host" in one and "port" in one:
                url = f"http://{authority(str(one['host']), one['port'])}"
                found.append(
                    DeployedServer(
                        name=str(one.get("worker_id", f"{role}_{i}")), role=role, url=url
                    )
                )
    return found


def list_servers(endpoint: Endpoint) -> list[tuple[str, str, str | None]]:
    """Return the name, the address and the role of each server that answers for the endpoint."""
    info = endpoint.info
    if info.workers:
        return [(one.name, one.url, one.role) for one in info.workers]
    servers = {name: url for name, url in (info.servers or {}).items() if name != FRONT}
    if len(servers) < 2:
        return [(SERVER, endpoint.base_url, None)]
    roles = {name: name.rpartition("_")[0] for name in servers}
    return [
        (name, url, roles[name] if roles[name] in ROLES.values() else None)
        for name, url in servers.items()
    ]


def list_launched(info: ServerInfo) -> list[DeployedServer]:
    """Return the servers that a launcher started, with the configs that it wrote. Reads files."""
    found = []
    for (name, url), words in zip((info.servers or {}).items(), info.commands or (), strict=False):
        config = _config(words)
        if name == FRONT:
            found.append(DeployedServer(name=name, role=FRONT, url=url, config=config))
            continue
        role = name.rpartition("_")[0]
        role = role if role in ROLES.values() else SERVER
        sizes = _sizes(words, config or {})
        found.append(
            DeployedServer(name=name, role=role, url=url, parallelism=sizes, config=config)
        )
    return found


def _config(words: Sequence[str]) -> dict[str, Any] | None:
    """Return the content of a command line's config file, or None if it cannot be read here."""
    import yaml

    file = _after(words, "--config") or _after(words, "-c")
    try:
        content = None if file is None else yaml.safe_load(Path(file).read_text(encoding="utf-8"))
    except (OSError, UnicodeError, yaml.YAMLError):
        return None
    return content if isinstance(content, dict) else None


def _sizes(words: Sequence[str], config: Mapping[str, Any]) -> dict[str, int]:
    """Return the sizes that are set; tp defaults to 1."""
    found = {"tp": 1}
    for name, (flag, key) in SIZES.items():
        size = str(config.get(key) or _after(words, flag) or "")
        if size.isdecimal():
            found[name] = int(size)
    return found


def _after(words: Sequence[str], flag: str) -> str | None:
    return next((after for word, after in pairwise(words) if word == flag), None)


class ClaimEvidence(NamedTuple):
    """The state of a claim and its evidence.

    `hint` says what would show more. `odd`: it looks wrong even if nobody expects it.
    """

    state: ProofState
    evidence: str
    hint: str = ""
    odd: bool = False


def prove(evidence: str) -> ClaimEvidence:
    return ClaimEvidence(ProofState.PROVEN, evidence)


def refute(evidence: str, *, odd: bool = False) -> ClaimEvidence:
    return ClaimEvidence(ProofState.REFUTED, evidence, odd=odd)


def leave_open(evidence: str, hint: str) -> ClaimEvidence:
    return ClaimEvidence(ProofState.UNKNOWN, evidence, hint)


CONTEXT, GENERATION = ROLES["context_servers"], ROLES["generation_servers"]


class NamedLegs(NamedTuple):
    """The answers whose servers are known.

    `context` of the `generation` answers with a known generation server have a known context server
    too; for `moved` of them the time or the size of a transfer was reported.
    """

    generation: int = 0
    context: int = 0
    moved: int = 0


@freeze
class PathFacts:
    """Hold the facts of a run about the path of its answers.

    `servers` are the counts of the engines while `answered` answers came. `tokens` are the
    generated tokens, `acceptances` the reports of steps in answers, and `cached` the tokens that
    answers report from a prefix cache (None: no answer reports them). `find_shared` returns the
    longest beginning, in characters, that two prompts share.
    """

    servers: Sequence[ServerCounts] = ()
    answered: int = 0
    tokens: int = 0
    acceptances: Sequence[Acceptance] = ()
    cached: int | None = None
    legs: NamedLegs = NamedLegs()
    repeated: RepeatedAnswers | None = None
    find_shared: Callable[[], int] = field(default=lambda: 0)

    def of_role(self, *roles: str | None) -> list[EngineCounts]:
        """Return the known counts of the servers with one of these roles; of all without any."""
        return [
            one.counts
            for one in self.servers
            if one.counts is not None and (not roles or one.role in roles)
        ]

    @property
    def disaggregated(self) -> bool:
        """True if servers of both roles count, or both took part in answers."""
        roles = {one.role for one in self.servers}
        return {CONTEXT, GENERATION} <= roles or bool(self.legs.generation)


def gather_facts(
    tasks: Sequence[TaskReport],
    engine: EngineReport | None,
    served: Mapping[str, Mapping[str, Sequence[Served]]] | None,
    repeated: RepeatedAnswers | None,
    find_shared: Callable[[], int],
) -> PathFacts:
    """Return the facts of a run from its tasks, its engines' counts and its traces."""
    cached = [task.traffic.cached_tokens for task in tasks]
    told = [count for count in cached if count is not None]
    scored = sum(task.result.scored for task in tasks)
    return PathFacts(
        servers=() if engine is None else engine.servers,
        answered=scored if engine is None or not engine.answered else engine.answered,
        tokens=sum(task.traffic.completion_tokens for task in tasks),
        acceptances=[
            task.traffic.acceptance for task in tasks if task.traffic.acceptance is not None
        ],
        cached=sum(told) if told else None,
        legs=count_legs(served or {}),
        repeated=repeated,
        find_shared=find_shared,
    )


def count_legs(served: Mapping[str, Mapping[str, Sequence[Served]]]) -> NamedLegs:
    """Return the counts of the answers whose servers are known."""
    last = [lines[-1] for samples in served.values() for lines in samples.values() if lines]
    both = [one for one in last if one.generation is not None]
    return NamedLegs(
        generation=len(both),
        context=sum(one.context is not None for one in both),
        moved=sum(bool(one.kv_transfer_s) or bool(one.kv_bytes) for one in both),
    )


def find_longest_shared(texts: Iterable[str]) -> int:
    """Return the longest beginning, in characters, that two of the texts share."""
    ordered, longest, before = sorted(texts), 0, None
    for text in ordered:
        if before is not None:
            longest = max(longest, _count_shared(before, text))
        before = text
    return longest


def _count_shared(one: str, other: str) -> int:
    least, most = 0, min(len(one), len(other))
    while least < most:  # the largest length at which both begin alike
        middle = (least + most + 1) // 2
        if one[:middle] == other[:middle]:
            least = middle
        else:
            most = middle - 1
    return least
