"""Is anybody there, at which address, under which name, and what does it tell of itself?"""

from __future__ import annotations

from serve_eval.checks.answer import Answer, short
from serve_eval.checks.check import Check
from serve_eval.checks.row import CheckResult, fail_check, pass_check, report_unsupported
from serve_eval.checks.session import CheckSession, StillStarting, explain_unauthorized
from serve_eval.client.client import UNREACHABLE_HINT
from serve_eval.client.questions import self_description
from serve_eval.errors import EndpointError
from serve_eval.plugins.registry import nearest

NOT_THERE = frozenset({404, 405})


async def reachable(session: CheckSession) -> CheckResult:
    """Settles the base URL, the model and which kinds of requests are answered at all. Raises
    EndpointError when there is nothing to check.
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
            hint="Give the URL up to and including /v1, as a user's program would.",
        )
    served = session.known.listed
    if session.model is None and len(served) != 1:
        several = (
            f"the endpoint serves {len(served)} models: {', '.join(served)}"
            if served
            else "no model is listed"
        )
        raise EndpointError(
            several, hint="Name one: --model. An older disaggregated orchestrator lists none."
        )
    session.model = session.model or served[0]
    if session.base_url != given:
        return pass_check(f"base URL {session.base_url}, and not {given}")
    return pass_check(f"base URL {session.base_url}, model {session.model}")


async def _is_here(session: CheckSession) -> bool:
    """Whether the API is below the base path: models are listed, or a request for one token finds a
    route.
    """
    models = session.known.models = await session.get(f"{session.base_path}/models")
    if not models.status:
        hint = await session.client.other_scheme() or UNREACHABLE_HINT
        raise EndpointError(f"{session.base_url} cannot be reached: {models.problem}", hint=hint)
    if refused := explain_unauthorized(session, models):
        raise refused
    if models.starting:
        raise StillStarting(
            f"{session.base_url} is starting: it loads its model",
            hint="Try again when it has started.",
        )
    if models.status == 503:
        raise EndpointError(
            f"{session.base_url} is not ready: {models.told}",
            hint="A server may still load its model.",
        )
    session.known.listed = (
        self_description.model_ids(models.content) if models.status == 200 else []
    )
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
    found = await session.get(f"{session.root}/health")
    if found.status in NOT_THERE:
        return report_unsupported("there is no /health: ask for one token instead", found.sent)
    if found.status != 200 or found.problem:
        return fail_check(found.told, found.sent)
    return pass_check("HTTP 200")


async def version(session: CheckSession) -> CheckResult:
    """Also finds out whether a disaggregated orchestrator answers, by a route that it alone has."""
    cluster = await session.get(f"{session.root}/cluster_info")
    session.known.orchestrator = cluster.status == 200 and "is_ready" in cluster.parsed
    front = ", a disaggregated orchestrator" if session.known.orchestrator else ""
    found = await session.get(f"{session.root}/version")
    told = self_description.version(found.content) if found.status == 200 else None
    if told is None and found.status >= 500:
        return fail_check(found.told, found.sent)
    if told is None:
        return report_unsupported(f"there is no /version{front}", found.sent)
    return pass_check(f"{told}{front}")


async def models(session: CheckSession) -> CheckResult:
    found = session.known.models
    assert found is not None
    if session.known.listed:
        session.known.context_tokens = (
            session.known.context_tokens
            or self_description.context_tokens(found.content, session.model)
        )
        return _check_name(session.known.listed, session.model or "")
    if found.status in NOT_THERE:
        front = (
            ": an older disaggregated orchestrator has none" if session.known.orchestrator else ""
        )
        return report_unsupported(f"there is no /models{front}", found.sent)
    if found.status == 200 and isinstance(found.parsed.get("data"), list):
        return report_unsupported("the list is empty", found.sent)
    return fail_check(_no_list(found), found.sent)


def _check_name(listed: list[str], model: str) -> CheckResult:
    if model in listed:
        return pass_check(f"{len(listed)} listed, {model} among them")
    return pass_check(
        f"{', '.join(listed)}; asked as {model!r}, which is not listed.{nearest(model, listed)}"
    )


def _no_list(found: Answer) -> str:
    return (
        f"HTTP 200 without a list of models: {short(found.told)}"
        if found.status == 200
        else found.told
    )


CHECKS = (
    Check(name="reachable", run=reachable, requests=9, tokens=6, prompt_tokens=60),
    Check(name="health", run=health, requests=1),
    Check(name="version", run=version, requests=2),
    Check(name="models", run=models, requests=0),
)
