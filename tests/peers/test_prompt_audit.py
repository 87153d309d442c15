"""Test that llama-server reads prompts as the files of the embedded model say, or is named."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from pathlib import Path

import pytest

from serve_eval.client.client import Client
from serve_eval.evidence.prompt_audit.audit import PROMPTS, audit
from serve_eval.evidence.prompt_audit.reading import PromptCause, PromptFinding
from serve_eval.launchers import llama_cpp
from serve_eval.schema import LaunchContext, Limits
from tests.evidence.prompt_audit.embedded_tokenizer import local_side
from tests.peers.conftest import BEGINNING, MODEL
from tests.peers.peers import PEERS_OF_OURS, WEIGHTS, Peer

pytestmark = [pytest.mark.slow, pytest.mark.peers]
SERVERS = [one for one in PEERS_OF_OURS if one.name.startswith("llama-server")]
CAUSES = {"BF16": PromptCause.SAME, BEGINNING: PromptCause.BOS_ADDED}
"""The second file has a token before every text, which the folder lacks."""


@pytest.mark.parametrize("kind", CAUSES)
@pytest.mark.parametrize("peer", SERVERS, ids=lambda peer: peer.name)
def test_the_ids_of_llama_server_are_those_of_the_files(
    peer: Peer, kind: str, weights: Callable[[str], Path], tmp_path: Path
) -> None:
    if why := peer.missing():
        pytest.skip(why)
    options = llama_cpp.LlamaCppOptions(**peer.spec(weights(kind)).options)

    async def story() -> list[PromptFinding]:
        context = LaunchContext(model=MODEL, log_dir=tmp_path / "logs")
        async with (
            llama_cpp.launch(context, options) as endpoint,
            Client(endpoint, Limits()) as client,
        ):
            return await audit(client, local_side(WEIGHTS))

    findings = asyncio.run(story())
    assert [one.cause for one in findings] == [CAUSES[kind]] * len(PROMPTS), findings
