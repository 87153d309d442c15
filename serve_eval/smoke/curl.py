"""A request as a line for a shell, with variables where secrets stand. Pure."""

from __future__ import annotations

import json
import re
import shlex
from collections.abc import Collection

from serve_eval.schema import Connection
from serve_eval.smoke.row import Sent

_VARIABLE = re.compile(r"\$\{[A-Za-z_][A-Za-z0-9_]*\}")


def curl(sent: Sent, connection: Connection, variables: Collection[str], *, body_file: str | None = None) -> str:
    """The command that sends a request again. `variables` are the names of those that the environment has. With
    `body_file` the body is the bytes of that file, else it stands in the command. An address may hold variables."""
    words = ["curl", "-sS", _quoted(sent.url)]
    given = {name.lower() for name in connection.headers}
    if sent.body is not None and "content-type" not in given:
        words += ["-H", shlex.quote("Content-Type: application/json")]
    if connection.api_key_env in variables and "authorization" not in given:
        words += ["-H", _quoted(f"Authorization: Bearer ${{{connection.api_key_env}}}")]
    for name, value in connection.headers.items():
        words += ["-H", _quoted(f"{name}: {value}")]
    words += ["--proxy", _quoted(connection.proxy)] if connection.proxy else ["--noproxy", "'*'"]
    if connection.ca_bundle:
        words += ["--cacert", shlex.quote(connection.ca_bundle)]
    if sent.body is not None:
        if sent.body.get("stream"):
            words.append("-N")
        data = json.dumps(sent.body, ensure_ascii=False) if body_file is None else f"@{body_file}"
        words += ["--data-binary", shlex.quote(data)]
    return " ".join(words)


def _quoted(text: str) -> str:
    """A word of a shell in which `${VARIABLE}` is filled in and nothing else is."""
    if not _VARIABLE.search(text):
        return shlex.quote(text)
    pieces, end = [], 0
    for found in _VARIABLE.finditer(text):
        pieces += [_plain(text[end : found.start()]), found[0]]
        end = found.end()
    return f'"{"".join([*pieces, _plain(text[end:])])}"'


def _plain(text: str) -> str:
    return re.sub(r'([\\"$`])', r"\\\1", text)
