"""The parts that the systems of the table share: running servers, weights, and ports."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from serve_eval.errors import LaunchError
from serve_eval.schema import Spec
from tests.vllm.conftest import address
from tests.vllm.deployments import Deployments, aggregated, disaggregated
from tests.vllm.quantise import write_model

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
