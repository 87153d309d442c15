"""Read the address of a running endpoint, for commands that take it as an argument."""

from __future__ import annotations

import os
from typing import Any

from serve_eval.cli._options import settings_of
from serve_eval.evaluation.plan.options import ConnectionOptions

ADDRESS_HELP = "host:port, .../v1 or a full URL (default OPENAI_BASE_URL, else localhost:8000)."
_FROM_VARIABLES = (
    *("base_url", "model", "api_key_env", "proxy", "ca_bundle", "max_tokens_field"),
    *("client_cert", "client_key", "client_key_password_env"),
)


def address_of(url: str | None, model: str | None, connection: ConnectionOptions) -> dict[str, Any]:
    """Return the plan settings by which an endpoint is reached.

    Flags take precedence over the SERVE_EVAL_* variables. An empty variable is a value too: an
    empty SERVE_EVAL_API_KEY_ENV sends no key.
    """
    named = {
        name: value for name, value in (("base_url", url), ("model", model)) if value is not None
    }
    variables = {name: os.environ.get(f"SERVE_EVAL_{name.upper()}") for name in _FROM_VARIABLES}
    given = {name: value for name, value in variables.items() if value is not None}
    return {**given, **named, **settings_of(connection)}
