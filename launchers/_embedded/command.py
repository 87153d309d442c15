"""Run the server of the embedded model as a separate process.

python -m serve_eval.launchers._embedded --weights FOLDER --model NAME=DAMAGE [--model ...]
"""

from __future__ import annotations

import argparse
import asyncio
import os
from collections.abc import Sequence
from pathlib import Path
from typing import get_args

from serve_eval.launchers._embedded.damage import CacheFault, Damage
from serve_eval.launchers._embedded.engine import PrefixCaching
from serve_eval.launchers._embedded.generation import FIELDS
from serve_eval.launchers._embedded.server import create_app
from serve_eval.launchers._http.requests import RefusedRequest
from serve_eval.launchers._http.server import serve_app
from serve_eval.launchers._process.server_process import serve_until_ended


def main(arguments: Sequence[str] | None = None) -> None:
    """Run the server as a separate process."""
    parser = argparse.ArgumentParser(
        prog="python -m serve_eval.launchers._embedded", description=__doc__, allow_abbrev=False
    )
    parser.add_argument(
        "--weights", type=Path, required=True, help="folder in the layout of the hub"
    )
    parser.add_argument(
        "--model", action="append", required=True, metavar="NAME=DAMAGE", help="name to serve"
    )
    parser.add_argument("--port", type=int, default=0, help="0: a free one")
    parser.add_argument(
        "--ready-file", type=Path, default=None, help="file for the base URL once it can be used"
    )
    parser.add_argument(
        "--strict-fields", action="store_true", help="refuse unknown fields of requests"
    )
    parser.add_argument(
        "--cache-blocks", type=int, default=0, help="blocks of the prefix cache (0: none)"
    )
    parser.add_argument("--host-blocks", type=int, default=0, help="blocks in host memory")
    parser.add_argument("--cache-fault", choices=get_args(CacheFault), default="none")
    parser.add_argument(
        "--default",
        action="append",
        default=[],
        metavar="FIELD=VALUE",
        help="sampling field of requests that lack it, as a generation_config.json sets it",
    )
    given = parser.parse_args(arguments)
    defaults: dict[str, float] = {}
    for text in given.default:
        name, _, value = text.partition("=")
        try:
            defaults[name] = float(value)
        except ValueError:
            parser.error(f"--default {text}: not FIELD=NUMBER")
        if name not in FIELDS:
            parser.error(f"--default {text}: not one of {', '.join(FIELDS)}")
    models: dict[str, Damage] = {}
    for text in given.model:
        name, _, damage = text.rpartition("=")
        if damage not in get_args(Damage) or not name or name in models:
            parser.error(
                f"--model {text}: not a new name with one of {', '.join(get_args(Damage))}"
            )
        models[name] = damage
    os.umask(0o077)  # files belong to a run folder
    try:
        caching = PrefixCaching(given.cache_blocks, given.host_blocks, given.cache_fault)
        app = create_app(
            given.weights,
            models,
            strict_fields=given.strict_fields,
            caching=caching,
            defaults=defaults,
        )
    except RefusedRequest as error:
        parser.error(f"--default: {error.body}")
    except (OSError, ValueError, KeyError) as error:
        parser.error(f"{given.weights} cannot be served: {type(error).__name__}: {error}")
    asyncio.run(
        serve_until_ended(serve_app(app, port=given.port), "embedded model", given.ready_file)
    )
