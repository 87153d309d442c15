"""Read from a server's log which sampling defaults its generation_config.json overrides."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterable, Iterator
from pathlib import Path

import msgspec

from serve_eval.protocol.sampling_fields import ROWS
from serve_eval.schema import SamplingDefaults

_OVERRIDDEN = re.compile(
    r"sampling param\w* (?:have|has) been overridden by the model's "
    r"[^{\n]{0,200}(\{[^{}\n]{0,1000}\})",
    re.IGNORECASE,
)
"""vLLM's warning at its start, with the fields as a Python dictionary (vllm/config/model.py)."""
MOST_BYTES = 2_000_000
"""The part of a log that holds the start of a server."""


def read_logged(paths: Iterable[Path]) -> dict[str, float]:
    """Return the fields with their values that the logs of servers name, empty if none do."""
    found: dict[str, float] = {}
    for path in paths:
        try:
            with path.open("rb") as file:
                text = file.read(MOST_BYTES).decode(errors="replace")
        except OSError:
            continue
        for match in _OVERRIDDEN.finditer(text):
            found |= dict(_read_fields(match[1]))
    return found


def _read_fields(text: str) -> Iterator[tuple[str, float]]:
    try:
        told = ast.literal_eval(text)
    except (ValueError, SyntaxError):
        return
    for name, value in told.items() if isinstance(told, dict) else ():
        if name in ROWS and isinstance(value, int | float) and value != ROWS[name].neutral:
            yield name, value


def put_logged(found: SamplingDefaults, logged: dict[str, float]) -> SamplingDefaults:
    """Return the defaults with the values of the log, which knows also what no answer shows."""
    if not logged:
        return found
    fields = tuple(
        msgspec.structs.replace(one, adds=True, value=logged[one.name])
        if one.name in logged
        else one
        for one in found.fields
    )
    told = ", ".join(f"{name} {value:g}" for name, value in logged.items())
    return msgspec.structs.replace(found, fields=fields, log=f"generation_config.json sets {told}")
