"""Measure the memory of a client with videos in flight: python -m bench.media_memory.

Each row is a process of its own that sends 64 videos of 4 MiB, 32 at a time, to the simulated
endpoint, which answers after half a second in another process. `held` has the videos in the samples
as base64, `files` reads each when it is sent, `paths` lets the server read them.
"""

from __future__ import annotations

import asyncio
import resource
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from serve_eval.client.client import Client
from serve_eval.datasets.media import video_part
from serve_eval.datasets.small_media import dot
from serve_eval.schema import Endpoint, Limits, Message, Request, Response, SamplingParams, TextPart
from serve_eval.schema.media import media_bytes

VIDEOS, BYTES, IN_FLIGHT = 64, 4 << 20, 32
LATENCY_S = "0.5"
WAYS = ("texts", "held", "files", "paths")


def main() -> None:
    """Print a row for each way to send the videos."""
    print("| samples | peak once loaded (MB) | peak at the end (MB) | time (s) |")
    print("|---|---|---|---|")
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        content = media_bytes(dot()) or b""
        for number in range(VIDEOS):
            padding = BYTES.to_bytes(4) + b"free" + bytes([number]) * (BYTES - 8)
            (folder / f"{number}.mp4").write_bytes(content + padding)
        for way in WAYS:
            ready = folder / "url"
            ready.unlink(missing_ok=True)
            command = [
                sys.executable,
                "-m",
                "serve_eval.launchers._simulated",
                "--latency-s",
                LATENCY_S,
            ]
            command += ["--ready-file", str(ready), "--local-media", str(folder)]
            with subprocess.Popen(command, stdout=subprocess.DEVNULL) as server:
                while not ready.exists():
                    time.sleep(0.05)
                url = ready.read_text().strip()
                child = [sys.executable, "-m", "bench.media_memory", way, url, str(folder)]
                subprocess.run(child, check=True)
                server.terminate()


async def send_all(way: str, url: str, folder: Path) -> None:
    """Send the videos in one way, and print the row."""
    requests = [_request(way, folder / f"{number}.mp4") for number in range(VIDEOS)]
    loaded, began, room = _peak_mb(), time.monotonic(), asyncio.Semaphore(IN_FLIGHT)
    endpoint, limits = Endpoint(base_url=url, model="simulated"), Limits(max_attempts=1)
    send_media = "path" if way == "paths" else "inline"
    async with Client(endpoint, limits, send_media=send_media) as client:

        async def send(request: Request) -> None:
            async with room:
                assert isinstance(await client.send(request), Response)

        await asyncio.gather(*map(send, requests))
    print(
        f"| {way} | {loaded:.0f} | {_peak_mb():.0f} | {time.monotonic() - began:.1f} |", flush=True
    )


def _request(way: str, path: Path) -> Request:
    text = TextPart(text="What happens?")
    held = () if way == "texts" else (video_part(path.read_bytes() if way == "held" else path),)
    prompt = (Message(role="user", content=(*held, text)),)
    return Request(sample_id=path.stem, prompt=prompt, sampling=SamplingParams(max_tokens=8))


def _peak_mb() -> float:
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1000


if __name__ == "__main__":
    if len(sys.argv) > 1:
        asyncio.run(send_all(sys.argv[1], sys.argv[2], Path(sys.argv[3])))
    else:
        main()
