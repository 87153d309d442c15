"""Read the special tokens of a tokenizer from the files of its folder or from a server's reply."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from serve_eval.errors import PlanError

CONFIG_FILE, TOKENS_FILE = "tokenizer_config.json", "special_tokens_map.json"


def read(folder: Path) -> dict[str, str]:
    """Return the special tokens of a folder by names such as bos_token. Raises PlanError."""
    if not any((folder / name).exists() for name in (CONFIG_FILE, TOKENS_FILE)):
        raise PlanError(f"{folder} has no {CONFIG_FILE}", hint="Name the folder of a tokenizer.")
    return read_texts({**json_of(folder / TOKENS_FILE), **json_of(folder / CONFIG_FILE)})


def read_texts(content: Mapping[str, object]) -> dict[str, str]:
    """Return the texts of the special tokens among other settings.

    Files write them as texts or with their properties.
    """
    found = {}
    for name, value in content.items():
        text = value.get("content") if isinstance(value, dict) else value
        if name.endswith("_token") and isinstance(text, str):
            found[name] = text
    return found


def beginning(tokens: Mapping[str, str]) -> str:
    """Return the token that lm-eval puts before a text: bos_token, else eos_token, else ""."""
    return tokens.get("bos_token") or tokens.get("eos_token") or ""


def json_of(file: Path) -> dict[str, Any]:
    """Return the JSON object in a file, empty if there is none.

    Raises PlanError for a file that cannot be read.
    """
    try:
        content = json.loads(file.read_text(encoding="utf-8")) if file.exists() else {}
    except (OSError, ValueError, RecursionError) as error:
        raise PlanError(f"{file}: cannot be read: {error}") from error
    return content if isinstance(content, dict) else {}
