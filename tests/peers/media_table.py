"""Print what endpoints take of images, sounds and videos: python -m tests.peers.media_table.

Our own endpoints come first, then the servers of other projects that are built (make test-peers).
All but the simulated endpoint serve the embedded model, which takes texts only.
"""

import asyncio
import subprocess
import tempfile
from pathlib import Path

from serve_eval.checks.kinds.media import CHECKS
from serve_eval.launchers import embedded
from serve_eval.launchers._simulated.simulator import SimulatorConfig, create_app, serve
from serve_eval.plugins.values import load_launcher
from serve_eval.schema import LaunchContext
from tests.peers.peers import PEERS_OF_OURS, PYTHON, WEIGHTS
from tests.workflows.smoke.trying import by_name, smoke_at

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
