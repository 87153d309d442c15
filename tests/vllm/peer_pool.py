"""Read probes on servers of other projects with the embedded model, where they are built.

`make test-peers` builds them; without any, the pool has vLLM and our own server only.
"""

from __future__ import annotations

import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from pathlib import Path

from serve_eval.schema import Plan, ProbeReading, ProbeRoute, Spec
from serve_eval.workflows.verify.servers import NamedPlan, VerifyRules, VerifySession, open_server
from tests.peers.peers import PEERS_OF_OURS, PYTHON, ROOT, WEIGHTS, Peer
from tests.vllm.deployments import MODEL

GGUF = {
    "BF16": ("--type", "BF16"),
    "Q8_0": ("--type", "Q8_0"),
    "Q4_0": ("--type", "Q4_0"),
    "int3": ("--type", "F32", "--damage", "int3"),
}
HUB = "HF"


def list_systems() -> Iterator[tuple[str, Peer, str]]:
    """Yield the name of each system, its server, and the kind of its weights.

    Of the servers that read GGUF files and list log-probabilities, the first one that is built is
    taken.
    """
    built = [peer for peer in PEERS_OF_OURS if peer.missing() is None]
    llama = next((one for one in built if one.name.startswith("llama-server")), None)
    if llama is not None:
        for kind in GGUF:
            yield f"llama-server {kind}", llama, kind
    for one in built:
        if not one.gguf:
            yield one.name, one, HUB


async def read_peer(
    peer: Peer, kind: str, texts: Sequence[str], folder: Path
) -> list[ProbeReading | None]:
    """Start a server with weights of a kind, and read all probes on it."""
    model = WEIGHTS if kind == HUB else _write(kind, folder)
    plan = Plan(
        model=MODEL,
        launcher=peer.spec(model),
        tasks=(Spec(name="word_problems"),),
        no_reference=True,
    )
    session = VerifySession(
        rules=VerifyRules(), out_dir=folder / peer.name / kind, environ=peer.env(), notify=print
    )
    began = time.monotonic()
    async with open_server(
        NamedPlan(name="b", plan=plan), session, route=ProbeRoute.TEXT
    ) as server:
        found = await server.read_all(texts)
    print(f"{peer.name} {kind}: {time.monotonic() - began:.0f} s", file=sys.stderr, flush=True)
    return found


def _write(kind: str, folder: Path) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    file = folder / f"{kind}.gguf"
    writer = ROOT / "tests/peers/write_gguf.py"
    subprocess.run([PYTHON, writer, WEIGHTS, file, *GGUF[kind]], check=True)
    return file
