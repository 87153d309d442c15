"""Check that the endpoint is reachable, and read its URL, models and version."""

from __future__ import annotations

from serve_eval.checks.answer import short
from serve_eval.checks.row import CheckResult, fail_check, pass_check, report_unsupported
from serve_eval.checks.session import Check, CheckSession, StillStarting, explain_unauthorized
from serve_eval.client import questions
from serve_eval.client.client import explain_unreachable
from serve_eval.errors import EndpointError
from serve_eval.plugins.registry import nearest
from serve_eval.schema import is_stand_in

NOT_THERE = frozenset({404, 405})
GENERATING = "/health_generate"


async def reachable(session: CheckSession) -> CheckResult:
    """Find the base URL, the model and the kinds of requests that are answered.

    Raises EndpointError if there is nothing to check.
    """
    given = session.base_url
    for path in dict.fromkeys(
        (session.base_path, session.root or "/", f"{session.base_path.rstrip('/')}/v1")
    ):
        session.base_path = path.rstrip("/")
        if await _is_here(session):
            break
    else:
        raise EndpointError(
            f"{given} answers, but is not the base URL of an OpenAI-compatible server:"
            f" {_describe_seen(session)}",
            hint="Give the URL up to and including /v1, as a client program needs it.",
        )
    served = session.known.listed
    if session.model is None and len(served) != 1:
        several = (
            f"the endpoint serves {len(served)} models: {', '.join(served)}"
            if served
            else "no model is listed"
        )
        raise EndpointError(
            several, hint="Name one with --model. An older disaggregated orchestrator lists none."
        )
    session.model = session.model or served[0]
    if session.base_url != given:
        return pass_check(f"base URL {session.base_url}, not {given}")
    return pass_check(f"base URL {session.base_url}, model {session.model}")


async def _is_here(session: CheckSession) -> bool:
    """Return whether the API is below the base path.

    It is if models are listed, or if a request for one token finds a route.
    """
    models = session.known.models = await session.get(f"{session.base_path}/models")
    if not models.status:
        hint = await session.client.other_scheme()
        hint = hint or explain_unreachable(session.client, models.problem)
        raise EndpointError(f"{session.base_url} cannot be reached: {models.problem}", hint=hint)
    if refused := explain_unauthorized(session, models):
        raise refused
    if models.starting:
        raise StillStarting(
            f"{session.base_url} is starting: it is loading its model",
            hint="Try again when it is ready.",
        )
    if models.status == 503:
        raise EndpointError(
            f"{session.base_url} is not ready: {models.told}",
            hint="The server may still be loading its model.",
        )
    session.known.server = questions.find_server(models.content)
    session.known.listed = questions.model_ids(models.content) if models.status == 200 else []
    if session.known.listed:
        return True
    for chat in (True, False):
        found = await session.post(session.body("Hello", chat=chat, max_tokens=1))
        if refused := explain_unauthorized(session, found):
            raise refused
        page = "html" in found.content_type.lower()
        if found.status and found.status not in NOT_THERE and not page:
            return True
    return False


def _describe_seen(session: CheckSession) -> str:
    return short(session.known.models.told) if session.known.models is not None else "nothing"


async def health(session: CheckSession) -> CheckResult:
    """Check /health, and at SGLang also /health_generate, for which its engine makes a token."""
    more = (GENERATING,) if session.known.server == questions.SGLANG else ()
    told = "HTTP 200"
    for route in ("/health", *more):
        found = await session.get(f"{session.root}{route}")
        if found.status in NOT_THERE:
            if route in more:
                break
            return report_unsupported("there is no /health: request one token instead", found.sent)
        if found.status != 200 or found.problem:
            return fail_check(f"{route}: {found.told}" if more else found.told, found.sent)
        told += f", also {route}" if route in more else ""
    return pass_check(told)


async def version(session: CheckSession) -> CheckResult:
    """Check the version, and find out from /cluster_info whether an orchestrator answers."""
    cluster = await session.get(f"{session.root}/cluster_info")
    session.known.orchestrator = cluster.status == 200 and "is_ready" in cluster.parsed
    front = ", a disaggregated orchestrator" if session.known.orchestrator else ""
    told = None
    for route in questions.version_routes(session.known.server):
        found = await session.get(f"{session.root}{route}")
        told = questions.find_version(found.content) if found.status == 200 else None
        if told is not None:
            break
    session.known.rehearsal = is_stand_in(told)
    if told is None and found.status >= 500:
        return fail_check(found.told, found.sent)
    if told is None:
        return report_unsupported(f"there is no {route}{front}", found.sent)
    return pass_check(f"{told}{front}")


async def models(session: CheckSession) -> CheckResult:
    found = session.known.models
    assert found is not None
    if session.known.server is None and session.known.orchestrator:
        session.known.server = questions.TRTLLM_SERVE
    if session.known.listed:
        session.known.context_tokens = session.known.context_tokens or questions.context_tokens(
            found.content, session.model
        )
        return _check_name(session.known.listed, session.model or "")
    if found.status in NOT_THERE:
        front = (
            ": an older disaggregated orchestrator has no such route"
            if session.known.orchestrator
            else ""
        )
        return report_unsupported(f"there is no /models{front}", found.sent)
    if found.status == 200 and isinstance(found.parsed.get("data"), list):
        return report_unsupported("the list is empty", found.sent)
    return fail_check(
        f"HTTP 200 without a list of models: {short(found.told)}"
        if found.status == 200
        else found.told,
        found.sent,
    )


def _check_name(listed: list[str], model: str) -> CheckResult:
    if model in listed:
        return pass_check(f"{len(listed)} listed, including {model}")
    return pass_check(
        f"{', '.join(listed)}; asked for {model!r}, which is not listed.{nearest(model, listed)}"
    )


CHECKS = (
    Check("reachable", reachable, requests=9, tokens=6, prompt_tokens=60),
    Check("health", health, requests=2),
    Check("version", version, requests=3),
    Check("models", models, requests=0),
)
