"""Read the address of a running endpoint, for commands that take it as an argument."""

from __future__ import annotations

import os
from dataclasses import fields
from typing import Annotated, Any, ClassVar

from serve_eval.cli._options import settings_of
from serve_eval.errors import PlanError
from serve_eval.frozen import freeze
from serve_eval.plan.options import ConnectionOptions
from serve_eval.plugins.setting import Setting
from serve_eval.schema import Connection

ADDRESS_HELP = "host:port, .../v1 or a full URL (default OPENAI_BASE_URL, else localhost:8000)."
CONNECTION = frozenset(one.name for one in fields(Connection))
"""The settings of how an endpoint is reached."""
_FROM_VARIABLES = (
    *("base_url", "model", "api_key_env", "proxy", "ca_bundle", "max_tokens_field"),
    *("client_cert", "client_key", "client_key_password_env"),
)


@freeze
class SetOptions:
    """Set keys of a plan that have no flag."""

    title: ClassVar[str] = ConnectionOptions.title
    settings: Annotated[
        list[str] | None,
        Setting(
            "Set a key of a plan, such as connection.proxy=URL. Repeatable.",
            flags=("--set",),
            metavar="KEY=VALUE",
            key="set",
            in_file=None,
            variable="never",
        ),
    ] = None


def address_of(
    url: str | None,
    model: str | None,
    connection: ConnectionOptions,
    more: SetOptions | None = None,
) -> dict[str, Any]:
    """Return the plan settings by which an endpoint is reached.

    Flags take precedence over the SERVE_EVAL_* variables. An empty variable is a value too: an
    empty SERVE_EVAL_API_KEY_ENV sends no key.
    """
    named = {
        name: value for name, value in (("base_url", url), ("model", model)) if value is not None
    }
    variables = {name: os.environ.get(f"SERVE_EVAL_{name.upper()}") for name in _FROM_VARIABLES}
    given = {name: value for name, value in variables.items() if value is not None}
    own = settings_of(connection) if more is None else settings_of(connection, more)
    if wrong := own.get("set"):
        raise PlanError(
            f"--set {wrong[0]}: here it sets how the endpoint is reached, as in"
            " connection.proxy=URL"
        )
    return {**given, **named, **own}
