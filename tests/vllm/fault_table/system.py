"""Hold a deployment under test with the servers, weights and ports that it uses."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import httpx

from serve_eval.errors import LaunchError
from serve_eval.schema import Spec
from tests.vllm.conftest import address
from tests.vllm.deployments import (
    MODEL,
    Deployments,
    aggregated,
    disaggregated,
    read_counter,
    write_model,
)

SOUND, PAIR = "aggregated", "disaggregated"


class Stage:
    """Starts the servers of a system beside a sound one, which all systems are compared with."""

    def __init__(self, running: Deployments, top: Path) -> None:
        self.running, self.top = running, top
        if SOUND not in running.names:
            running.start(**{SOUND: aggregated()})

    @property
    def sound(self) -> str:
        """The base URL of the sound deployment."""
        return self.running[SOUND].base_url

    def weights(self, kind: str) -> str:
        """Return the folder of rounded weights."""
        folder = self.top / "weights" / kind
        return str(folder if folder.exists() else write_model(kind, folder))

    def pair(self) -> tuple[str, str]:
        """Return the addresses of a sound context and generation server, which stay up."""
        if PAIR not in self.running.names:
            self.running.start(**{PAIR: disaggregated()})
        return self.server(PAIR, "context_0"), self.server(PAIR, "generation_0")

    @contextmanager
    def up(self, **launchers: Spec) -> Iterator[None]:
        """Keep deployments running; one that has lost a server is ended as well."""
        try:
            self.running.start(**launchers)
            yield
        finally:
            for name in set(launchers) & set(self.running.names):
                with suppress(LaunchError):
                    self.running.stop(name)

    def server(self, deployment: str, name: str) -> str:
        """Return the address of a server of a disaggregated deployment."""
        return address(self.running[deployment], name)

    def root(self, deployment: str) -> str:
        """Return the address of a deployment of one server."""
        return self.running[deployment].base_url.removesuffix("/v1")


REQUESTS = "vllm:request_success_total"
TOKENS = ("vllm:prompt_tokens_total", "vllm:generation_tokens_total")
IN_FLIGHT = 16
SAMPLES = 3000
"""Problems from which a trial draws its prompts."""


@dataclass(frozen=True, kw_only=True)
class System:
    """Say where a deployment is reached, and how it is asked."""

    a: str
    b: str
    """Base URLs of the sound deployment and of the one under test."""
    servers: Mapping[str, str] = field(default_factory=dict)
    """Addresses of the servers behind B, by names such as context_0."""
    expect: str = "kv_transfer"
    """The part of the path that must be proven. Empty: none."""
    prompts: int = 200
    shots: int = 0
    chat: bool = False
    may_ask_servers: bool = True
    """True if each server behind B takes requests without the orchestrator."""
    in_flight: int = IN_FLIGHT
    disturb: Callable[[Path], None] | None = None
    """Disturbs the servers once, while B is asked. Its argument is the folder of B's answers."""
    _disturbed: list[bool] = field(default_factory=list, init=False)

    @property
    def workers(self) -> list[str]:
        """The flags that name the servers behind B."""
        if not self.may_ask_servers:
            return []
        flags = [f"{name.partition('_')[0]}={url}" for name, url in self.servers.items()]
        return [word for flag in flags for word in ("--worker", flag)]

    @contextmanager
    def disturbed(self, out: Path) -> Iterator[None]:
        """Disturb the servers while the body asks B, unless that was done before.

        Raises the error of the disturbance, which then left the servers as they were.
        """
        if self.disturb is None or self._disturbed:
            yield
            return
        self._disturbed.append(True)
        with ThreadPoolExecutor(1) as pool:
            disturbing = pool.submit(self.disturb, out)
            yield
            disturbing.result()

    def plan(self, url: str, seed: int, prompts: int) -> dict[str, Any]:
        """Return the plan of a side as a mapping for YAML."""
        behind = {"servers": dict(self.servers)} if url == self.b and self.servers else {}
        return {
            "model": MODEL,
            "launcher": {"name": "external", "base_url": url, **behind},
            "tasks": [{"name": "word_problems", "num_samples": SAMPLES, "num_fewshot": self.shots}],
            "limit": prompts,
            "seed": seed,
            "no_reference": True,
            **({"protocol": {"apply_chat_template": True}} if self.chat else {}),
        }

    def count(self) -> tuple[float, float]:
        """Return the requests and tokens that the engines of both sides have counted."""
        roots = {url.removesuffix("/v1") for url in (self.a, *self.servers.values())}
        roots |= set() if self.servers else {self.b.removesuffix("/v1")}
        requests = tokens = 0.0
        for root in roots:
            with suppress(httpx.HTTPError):
                requests += read_counter(root, REQUESTS)
                tokens += sum(read_counter(root, name) for name in TOKENS)
        return requests, tokens
