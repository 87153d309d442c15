"""Hide the secrets of a connection in text that is shown or written."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from typing import Any

from serve_eval.client.connection import looks_secret
from serve_eval.masking import HIDDEN, Masking
from serve_eval.schema import Connection

_TOKEN = re.compile(
    r"\b(?:Bearer\s+|sk-|hf_|nvapi-|ghp_)[A-Za-z0-9._-]{8,}|(?<=://)[^/\s:@]+:[^/\s@]+(?=@)"
)
_SIGNS = {"B": ("Bearer",), "-": ("sk-", "nvapi-"), "_": ("hf_", "ghp_"), "/": ("://",)}
"""Parts of every match of _TOKEN, by one of their characters: looking for that, then for them,
takes a thirtieth of the time."""
_PLAIN = re.compile(r"tokens|tokeniz|_env$", re.IGNORECASE)
"""Names that look secret but are not: token counts, tokenizers, names of variables."""


class SecretMask:
    """Hide secrets in text from other sources.

    Secrets are the values of the connection's variables and of every variable with a
    secret-sounding name, and anything that looks like a key.
    """

    def __init__(self, connection: Connection, environ: Mapping[str, str]) -> None:
        named = {
            connection.api_key_env,
            connection.client_key_password_env,
            *variables_in(*connection.headers.values(), connection.proxy or ""),
        }
        held = (
            value.strip() for name, value in environ.items() if name in named or looks_secret(name)
        )
        self._masking = Masking(held)

    def __call__(self, text: str) -> str:
        text = self._masking.text(text)
        for character, signs in _SIGNS.items():
            if character in text:
                for sign in signs:
                    if sign in text:
                        return _TOKEN.sub(HIDDEN, text)
        return text

    def holds(self, data: bytes) -> bool:
        """Return True if bytes contain a known secret."""
        return self._masking.holds(data)

    def of(self, value: Any, name: str = "") -> Any:
        """Return a JSON value with its secrets hidden, and any text under a secret's name."""
        if isinstance(value, Mapping):
            return {self(str(key)): self.of(inner, str(key)) for key, inner in value.items()}
        if isinstance(value, list | tuple):
            texts = bool(value) and all(isinstance(inner, str) for inner in value)
            return [
                self.of(inner, name) for inner in (self._masking.pieces(value) if texts else value)
            ]
        if not isinstance(value, str):
            return value
        return HIDDEN if looks_secret(name) and not _PLAIN.search(name) else self(value)


def variables_in(*texts: str) -> Iterable[str]:
    """Yield the names in the `${NAME}` of texts."""
    return (name for text in texts for name in re.findall(r"\$\{([A-Za-z_][A-Za-z0-9_]*)\}", text))
