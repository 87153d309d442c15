"""Is anybody there, at which address, under which name, and what does it tell of itself?"""

from __future__ import annotations

from serve_eval.checks.answer import Answer, short
from serve_eval.checks.check import Check
from serve_eval.checks.row import CheckResult, failed, passed, unsupported
from serve_eval.checks.session import CheckSession, StillStarting, unauthorized
from serve_eval.client.client import UNREACHABLE_HINT
from serve_eval.client.questions import self_description
from serve_eval.errors import EndpointError
from serve_eval.plugins.registry import nearest

NOT_THERE = frozenset({404, 405})


async def reachable(s: CheckSession) -> CheckResult:
    """Settles the base URL, the model and which kinds of requests are answered at all. Raises EndpointError when there
    is nothing to check."""
    given = s.base_url
    for path in dict.fromkeys((s.base_path, s.root or "/", f"{s.base_path.rstrip('/')}/v1")):
        s.base_path = path.rstrip("/")
        if await _is_here(s):
            break
    else:
        raise EndpointError(
            f"{given} answers, but is not the base URL of an OpenAI-compatible server: {_seen(s)}",
            hint="Give the URL up to and including /v1, as a user's program would.",
        )
    served = s.known.listed
    if s.model is None and len(served) != 1:
        several = f"the endpoint serves {len(served)} models: {', '.join(served)}" if served else "no model is listed"
        raise EndpointError(several, hint="Name one: --model. An older disaggregated orchestrator lists none.")
    s.model = s.model or served[0]
    if s.base_url != given:
        return passed(f"base URL {s.base_url}, and not {given}")
    return passed(f"base URL {s.base_url}, model {s.model}")


async def _is_here(s: CheckSession) -> bool:
    """Whether the API is below the base path: models are listed, or a request for one token finds a route."""
    models = s.known.models = await s.get(f"{s.base_path}/models")
    if not models.status:
        hint = await s.client.other_scheme() or UNREACHABLE_HINT
        raise EndpointError(f"{s.base_url} cannot be reached: {models.problem}", hint=hint)
    if refused := unauthorized(s, models):
        raise refused
    if models.starting:
        raise StillStarting(f"{s.base_url} is starting: it loads its model", hint="Try again when it has started.")
    if models.status == 503:
        raise EndpointError(f"{s.base_url} is not ready: {models.told}", hint="A server may still load its model.")
    s.known.listed = self_description.model_ids(models.content) if models.status == 200 else []
    if s.known.listed:
        return True
    for chat in (True, False):
        found = await s.post(s.body("Hello", chat=chat, max_tokens=1))
        if refused := unauthorized(s, found):
            raise refused
        page = "html" in found.content_type.lower()
        if found.status and found.status not in NOT_THERE and not page:
            return True
    return False


def _seen(s: CheckSession) -> str:
    return short(s.known.models.told) if s.known.models is not None else "nothing"


async def health(s: CheckSession) -> CheckResult:
    found = await s.get(f"{s.root}/health")
    if found.status in NOT_THERE:
        return unsupported("there is no /health: ask for one token instead", found.sent)
    if found.status != 200 or found.problem:
        return failed(found.told, found.sent)
    return passed("HTTP 200")


async def version(s: CheckSession) -> CheckResult:
    """Also finds out whether a disaggregated orchestrator answers, by a route that it alone has."""
    cluster = await s.get(f"{s.root}/cluster_info")
    s.known.orchestrator = cluster.status == 200 and "is_ready" in cluster.parsed
    front = ", a disaggregated orchestrator" if s.known.orchestrator else ""
    found = await s.get(f"{s.root}/version")
    told = self_description.version(found.content) if found.status == 200 else None
    if told is None and found.status >= 500:
        return failed(found.told, found.sent)
    if told is None:
        return unsupported(f"there is no /version{front}", found.sent)
    return passed(f"{told}{front}")


async def models(s: CheckSession) -> CheckResult:
    found = s.known.models
    assert found is not None
    if s.known.listed:
        s.known.context_tokens = s.known.context_tokens or self_description.context_tokens(found.content, s.model)
        return _named(s.known.listed, s.model or "")
    if found.status in NOT_THERE:
        front = ": an older disaggregated orchestrator has none" if s.known.orchestrator else ""
        return unsupported(f"there is no /models{front}", found.sent)
    if found.status == 200 and isinstance(found.parsed.get("data"), list):
        return unsupported("the list is empty", found.sent)
    return failed(_no_list(found), found.sent)


def _named(listed: list[str], model: str) -> CheckResult:
    if model in listed:
        return passed(f"{len(listed)} listed, {model} among them")
    return passed(f"{', '.join(listed)}; asked as {model!r}, which is not listed.{nearest(model, listed)}")


def _no_list(found: Answer) -> str:
    return f"HTTP 200 without a list of models: {short(found.told)}" if found.status == 200 else found.told


CHECKS = (
    Check(name="reachable", run=reachable, requests=9, tokens=6, prompt_tokens=60),
    Check(name="health", run=health, requests=1),
    Check(name="version", run=version, requests=2),
    Check(name="models", run=models, requests=0),
)
