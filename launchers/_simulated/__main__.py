"""Start the simulated endpoint as a separate process, with an option per field of SimulatorConfig.

python -m serve_eval.launchers._simulated --answers FILE [--model NAME] [--port 0] [FAULTS]
"""

from __future__ import annotations

import argparse
import asyncio
import os
from collections.abc import Sequence
from dataclasses import fields
from pathlib import Path
from typing import get_type_hints

import msgspec

from serve_eval.launchers._process.server_process import serve_until_ended
from serve_eval.launchers._simulated.config import SimulatorConfig
from serve_eval.launchers._simulated.simulator import serve

IN_PROCESS_ONLY = ("api_key", "record")
"""Fields without an option: a key does not belong on a command line, and records could not be
read."""


def parse(arguments: Sequence[str] | None) -> tuple[SimulatorConfig, int, Path | None]:
    """Return the config, the port and the ready file from the command line."""
    parser = argparse.ArgumentParser(
        prog="python -m serve_eval.launchers._simulated",
        description="A simulated OpenAI-compatible endpoint on 127.0.0.1. It contains no model.",
        usage="%(prog)s [--answers FILE] [options]",
        argument_default=argparse.SUPPRESS,
        allow_abbrev=False,
    )
    parser.add_argument("--port", type=int, default=0, help="0: a free one")
    parser.add_argument(
        "--ready-file", type=Path, default=None, help="file for the base URL once it can be used"
    )
    hints = get_type_hints(SimulatorConfig)
    for one in fields(SimulatorConfig):
        flag = f"--{one.name.replace('_', '-')}"
        if one.name not in IN_PROCESS_ONLY:
            parser.add_argument(flag, action="store_true" if hints[one.name] is bool else "store")
    given = vars(parser.parse_args(arguments))
    port, ready_file = given.pop("port"), given.pop("ready_file")
    try:
        config = msgspec.convert(
            given, SimulatorConfig, strict=False, dec_hook=lambda kind, value: kind(value)
        )
    except msgspec.ValidationError as error:
        parser.error(str(error))
    return config, port, ready_file


def main(arguments: Sequence[str] | None = None) -> None:
    """Run the server as a separate process."""
    config, port, ready_file = parse(arguments)
    os.umask(0o077)  # files belong to a run folder
    asyncio.run(serve_until_ended(serve(config, port=port), "simulated endpoint", ready_file))


if __name__ == "__main__":
    main()
