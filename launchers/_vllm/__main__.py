"""Run the orchestrator of a vLLM deployment as a separate process."""

from __future__ import annotations

import argparse
import asyncio
from collections.abc import Sequence

from serve_eval.launchers._http.server import serve_app
from serve_eval.launchers._process.server_process import serve_until_ended
from serve_eval.launchers._vllm.orchestrator import VllmServer, create_app


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(
        prog="python -m serve_eval.launchers._vllm", description=__doc__, allow_abbrev=False
    )
    parser.add_argument("--host", default="127.0.0.1", help="address to listen on")
    parser.add_argument("--port", type=int, default=0, help="0: a free one")
    for side in ("context", "generation"):
        parser.add_argument(
            f"--{side}",
            type=_read_server,
            action="append",
            required=True,
            metavar="NAME=URL",
            help=f"a {side} server: its name in answers, and its address",
        )
    parser.add_argument(
        "--no-params",
        action="store_true",
        help="the servers hand over without kv_transfer_params, as by a folder",
    )
    given = parser.parse_args(arguments)
    app = create_app(given.context, given.generation, by_params=not given.no_params)
    serving = serve_app(app, host=given.host, port=given.port)
    asyncio.run(serve_until_ended(serving, "orchestrator", None))


def _read_server(text: str) -> VllmServer:
    name, _, url = text.partition("=")
    if not name or "://" not in url:
        raise argparse.ArgumentTypeError(f"{text}: not NAME=URL")
    return VllmServer(name, url.rstrip("/"))


if __name__ == "__main__":
    main()
