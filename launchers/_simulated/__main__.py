"""Starts the simulated endpoint as a process of its own: an option for every field of
SimulatorConfig.

python -m launchers._simulated --answers FILE [--model NAME] [--port 0] [--ready-file FILE] [FAULTS]
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

from launchers._process.own_server import serve_until_ended
from launchers._simulated.config import SimulatorConfig
from launchers._simulated.simulator import serve

IN_PROCESS_ONLY = ("api_key", "record")
"""A key does not belong on a command line, and what is recorded could not be read."""


def parse(arguments: Sequence[str] | None) -> tuple[SimulatorConfig, int, Path | None]:
    """The command line: an option for every field of SimulatorConfig that makes sense there."""
    parser = argparse.ArgumentParser(
        prog="python -m launchers._simulated",
        description="A simulated OpenAI-compatible endpoint on 127.0.0.1. There is no model in it.",
        usage="%(prog)s [--answers FILE] [options]",
        argument_default=argparse.SUPPRESS,
        allow_abbrev=False,
    )
    parser.add_argument("--port", type=int, default=0, help="0: any free one")
    parser.add_argument(
        "--ready-file", type=Path, default=None, help="gets the base URL once it can be used"
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
    """Runs the server as its own process."""
    config, port, ready_file = parse(arguments)
    os.umask(0o077)  # what is written belongs to a run folder
    asyncio.run(serve_until_ended(serve(config, port=port), "simulated endpoint", ready_file))


if __name__ == "__main__":
    main()
