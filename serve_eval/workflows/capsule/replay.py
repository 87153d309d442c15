"""Build what sends the request of a capsule again: its bodies, and a script with curl commands."""

from __future__ import annotations

import shlex
from collections.abc import Mapping

import msgspec

from serve_eval.checks.curl import curl, escape
from serve_eval.checks.row import SentRequest
from serve_eval.client.request_body import put_media
from serve_eval.client.wire_format import logprobs, wire
from serve_eval.errors import RunFolderError
from serve_eval.evaluation.capabilities.sampling import to_fields
from serve_eval.plan.prepared_task import request_of
from serve_eval.schema import LogprobsForm, Need
from serve_eval.workflows.capsule.packed import Packed

BASE_URL = "BASE_URL"


def bodies_of(one: Packed) -> dict[str, bytes]:
    """Encode the request by file name: one body, or one for each choice of the sample."""
    request = request_of(one.p.task, one.sample)
    prompts = (
        [context + choice for context, choice in one.sample.continued]
        if one.sample.choices
        else [request.prompt]
    )
    model = one.session.endpoint.model or one.plan.model
    if not model:
        raise RunFolderError(
            f"{one.run}: neither its plan nor its sessions name the model that was asked"
        )
    over = logprobs.FIELDS[_form(one)] if request.prompt_logprobs else None
    defaults = one.session.sampling_defaults
    neutral = None if defaults is None else to_fields(defaults)
    encoded = [
        wire.encode(
            put_media(msgspec.structs.replace(request, prompt=prompt), "inline"),
            model,
            stream=bool(one.attempts and one.attempts[-1].streamed),
            max_tokens_field=one.plan.connection.max_tokens_field,
            over=over,
            neutral=neutral,
        )
        for prompt in prompts
    ]
    if len(encoded) == 1:
        return {"body.json": encoded[0]}
    return {f"body-{number}.json": body for number, body in enumerate(encoded, 1)}


def _form(one: Packed) -> LogprobsForm:
    """Return the form of the log-probabilities that the probe of the session found."""
    told = [found.seen for found in one.session.abilities if found.need == Need.PROMPT_LOGPROBS]
    return next(
        (form for form in logprobs.FIELDS if told and told[0].startswith(f"{form}: ")), "echo"
    )


def script_of(one: Packed, bodies: Mapping[str, bytes]) -> str:
    """Return the shell script that sends the bodies again."""
    connection = one.plan.connection
    route = wire.route(one.sample.prompt)
    lines = [
        "#!/bin/sh",
        "# Sends the request again. Keys come from variables.",
        "set -e",
        'CDPATH= cd -- "$(dirname -- "$0")"',
    ]
    base_url = shlex.quote(escape(base_url_of(one)))
    lines.append(f'[ -n "${BASE_URL}" ] || {BASE_URL}={base_url}')
    names = []
    if connection.api_key_env:
        names = [connection.api_key_env]
        lines.append(f': "${{{connection.api_key_env}:=none}}"')
    for name, body in bodies.items():
        sent = SentRequest(url=route, body=msgspec.json.decode(body))
        lines += [curl(sent, connection, names, body_file=name, base_variable=BASE_URL), "echo"]
    return "\n".join(lines) + "\n"


def base_url_of(one: Packed) -> str:
    """Return the base URL of the session, or else that of the plan."""
    told = one.session.endpoint.base_url or one.plan.launcher.options.get("base_url")
    return str(told or "http://localhost:8000/v1")
