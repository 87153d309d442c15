"""The servers of other projects, where they are built, and how our launchers start them.

`python -m tests.peers.peers` prints what endpoints take of images, sounds and videos. Our own
endpoints come first, then the servers of other projects that are built (make test-peers). All but
the simulated endpoint serve the embedded model, which takes texts only.
"""

from __future__ import annotations

import asyncio
import os
import subprocess
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from serve_eval.checks.kinds.media import CHECKS
from serve_eval.launchers import embedded
from serve_eval.launchers._simulated.simulator import SimulatorConfig, create_app, serve
from serve_eval.plugins.values import load_launcher
from serve_eval.schema import LaunchContext, Spec
from tests.workflows.smoke.trying import by_name, smoke_at

ROOT = Path(__file__).resolve().parents[2]
PEERS = Path(os.environ.get("SERVE_EVAL_PEERS", ROOT / ".venv-peers"))
"""The folder that `make test-peers` builds."""
PYTHON = PEERS / "bin/python"
LLAMA = PEERS / "llama.cpp/bin"
# The shipped weights, or others to try.
WEIGHTS = Path(os.environ.get("SERVE_EVAL_WEIGHTS", embedded.WEIGHTS))
CONTEXT_TOKENS = 512
SLOTS = 16
READY_S = 300.0
"""Importing torch alone takes half a minute on a busy machine."""


@dataclass(frozen=True, slots=True)
class Peer:
    """A server that is started by one of our launchers.

    `import_` is the package that it needs. With `gguf` it reads files of that format, some of them
    quantised; otherwise folders in the layout of the hub. With `beginning` it returns
    log-probabilities of prompts if a token stands before every text. `extra_body` switches off
    features that are on by default. `limit` is the number of samples for a slow server (None: all).
    `smoke` holds the rows of `serve-eval smoke --level full` that are not PASS.
    """

    name: str
    launcher: str
    options: Mapping[str, object] = field(default_factory=dict)
    needs: Path = PYTHON
    import_: str | None = None
    gguf: bool = True
    beginning: bool = False
    limit: int | None = None
    extra_body: Mapping[str, object] = field(default_factory=dict)
    smoke: Mapping[str, str] = field(default_factory=dict)

    def missing(self):
        """Return why it cannot be started, or None if it can."""
        if not (WEIGHTS / "config.json").exists():
            return f"{WEIGHTS} has no model"
        if not self.needs.exists():
            return f"{self.name} was not built: {self.needs} is not there (make test-peers)"
        if self.import_ is not None:
            tried = subprocess.run(
                [PYTHON, "-c", f"import {self.import_}"], env=self.env(), capture_output=True
            )
            if tried.returncode:
                return f"{self.name}: {PYTHON} has no {self.import_} that works (make test-peers)"
        return None

    def env(self):
        return {**os.environ, "LLAMA_CPP_LIB_PATH": str(LLAMA)}

    def spec(self, model):
        """Return the launcher's entry of a plan."""
        return Spec(
            name=self.launcher,
            options={"model": str(model), "ready_timeout_s": READY_S, **self.options},
        )


FAIL, LACKS = "FAIL", "UNSUPPORTED"
NOT_OF_THIS_MODEL = {
    "version": LACKS,
    "tools": LACKS,
    "reasoning": LACKS,
    "special_tokens": LACKS,
    "tokenize": LACKS,
    "returned_ids": LACKS,
    "questions": FAIL,
    "passkey_1k": LACKS,
    "passkey_8k": LACKS,
    **dict.fromkeys(("image", "audio", "video", "bad_media", "large_media"), LACKS),
}
"""The model is not instructed and has a window of 512 tokens; no server here has /version or
returns token ids in vLLM's form."""
LLAMA_SERVER = {
    **NOT_OF_THIS_MODEL,
    "logprobs_completions": LACKS,
    "prompt_logprobs": LACKS,
    "json_portable": LACKS,
    "max_tokens_0": LACKS,
}
LLAMA_CPP_PYTHON = {
    **NOT_OF_THIS_MODEL,
    "health": LACKS,
    "stream_usage": LACKS,
    "max_completion_tokens": FAIL,
    "n": LACKS,
    "prompt_logprobs": FAIL,
    "json_schema": FAIL,
    "json_portable": FAIL,
    "token_ids": FAIL,
    "batch": FAIL,
    "cancel": LACKS,
    "max_tokens_0": FAIL,
}
TRANSFORMERS = {
    **NOT_OF_THIS_MODEL,
    **dict.fromkeys(("image", "audio", "video"), FAIL),
    "models": FAIL,
    "stream_chat": FAIL,
    "stream_completions": FAIL,
    "stop": FAIL,
    "temperature": FAIL,
    "seed": LACKS,
    "n": LACKS,
    "logprobs_chat": LACKS,
    "logprobs_completions": LACKS,
    "prompt_logprobs": LACKS,
    "json": LACKS,
    "json_schema": LACKS,
    "json_portable": LACKS,
    "token_ids": LACKS,
    "batch": LACKS,
    "cancel": LACKS,
    "long_prompt": FAIL,
}
ONE_CORE = {"context_tokens": CONTEXT_TOKENS, "parallel": SLOTS, "threads": 1}
PEERS_OF_OURS = (
    Peer(
        "llama-server",
        "llama_cpp",
        {**ONE_CORE, "command": [str(LLAMA / "llama-server")]},
        LLAMA / "llama-server",
        smoke=LLAMA_SERVER,
    ),
    Peer(
        "llama-server of xllamacpp",
        "llama_cpp",
        {**ONE_CORE, "command": [str(PYTHON), str(Path(__file__).with_name("wheel_server.py"))]},
        import_="xllamacpp",
        smoke=LLAMA_SERVER,
    ),
    Peer(
        "llama-cpp-python",
        "llama_cpp",
        {
            "server": "python",
            "command": [str(PYTHON), "-m", "llama_cpp.server"],
            "context_tokens": CONTEXT_TOKENS,
            "threads": 1,
            "prompt_logprobs": True,
            "env": {"LLAMA_CPP_LIB_PATH": str(LLAMA)},
        },
        import_="llama_cpp",
        beginning=True,
        extra_body={"repeat_penalty": 1.0},
        smoke=LLAMA_CPP_PYTHON,
    ),
    Peer(
        "transformers serve",
        "transformers_serve",
        {
            "command": [str(PEERS / "bin/transformers")],
            "device": "cpu",
            "threads": 1,
            "env": {"HF_HUB_OFFLINE": "1"},
        },
        PEERS / "bin/transformers",
        gguf=False,
        limit=100,
        smoke=TRANSFORMERS,
    ),
)


NAMES = [check.name for check in CHECKS]


async def main():
    print(f"| endpoint | {' | '.join(NAMES)} |\n|{'---|' * (1 + len(NAMES))}")
    async with serve(create_app(SimulatorConfig())) as url:
        show("simulated", await check(url))
    with tempfile.TemporaryDirectory() as folder:
        context = LaunchContext(model=None, log_dir=Path(folder))
        async with embedded.launch(context, embedded.EmbeddedOptions()) as endpoint:
            show("embedded", await check(endpoint.base_url))
        for peer in PEERS_OF_OURS:
            if (missing := peer.missing()) is not None:
                print(f"{peer.name}: not tried: {missing}")
            else:
                await try_peer(peer, Path(folder))


async def try_peer(peer, folder):
    """Start a server and print its line."""
    model = WEIGHTS
    if peer.gguf:
        model = folder / "BF16.gguf"
        writer = Path(__file__).with_name("write_gguf.py")
        command = [str(PYTHON), str(writer), str(WEIGHTS), str(model), "--type", "BF16"]
        await asyncio.to_thread(subprocess.run, command, check=True)
    launcher = load_launcher(peer.launcher)
    context = LaunchContext(model="embedded", log_dir=folder / peer.name.replace(" ", "_"))
    spec = peer.spec(model)
    async with launcher.launch(context, **spec.options) as endpoint:
        show(peer.name, await check(endpoint.base_url, str(endpoint.model)))


async def check(url, model=None):
    """Return the rows of the checks with media."""
    return by_name(await smoke_at(url, only=NAMES, model=model))


def show(name, rows):
    cells = [f"{rows[one].outcome}: {rows[one].told}" if one in rows else "-" for one in NAMES]
    print(f"| {name} | {' | '.join(cells)} |", flush=True)


if __name__ == "__main__":
    asyncio.run(main())
