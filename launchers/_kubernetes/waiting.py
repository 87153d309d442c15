"""Wait until the pods behind a Service are Ready and answer a completion."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Sequence

import httpx

from serve_eval.errors import LaunchError
from serve_eval.launchers._fleet import bounded_reply, loading
from serve_eval.launchers._fleet.bounded_reply import BoundedReply
from serve_eval.launchers._kubernetes.cluster import (
    Cluster,
    RefusedError,
    UnreachableError,
    as_launch_error,
)
from serve_eval.launchers._kubernetes.logs import read_last_lines
from serve_eval.launchers._kubernetes.pods import PodState
from serve_eval.launchers._kubernetes.services import list_pods
from serve_eval.launchers._logs.last_error import cause
from serve_eval.launchers._logs.refusals import SAME, Refusals

POLL_S = 1.0
"""Seconds between two looks at the pods."""
TELL_S = 10.0
"""Seconds between two messages about what the launch waits for."""
ASK_AGAIN_S = 0.5
NEEDS_KEY = (401, 403)


async def wait_until_ready(
    cluster: Cluster,
    selectors: Sequence[str],
    *,
    timeout_s: float,
    notify: Callable[[str], None],
    poll_s: float = POLL_S,
) -> list[list[PodState]]:
    """Return the pods of each label selector once all of them are Ready.

    Pods that ended or are being deleted do not count. Raises LaunchError after `timeout_s`
    seconds, and immediately if a container does not start without help.
    """
    began = said = time.monotonic()
    first = True
    while True:
        try:
            found = [await list_pods(cluster, one) for one in selectors]
        except (RefusedError, UnreachableError) as error:
            if first or isinstance(error, RefusedError):
                doing = f"list the pods of namespace {cluster.namespace}"
                raise as_launch_error(error, doing, cluster) from error
            waiting = [f"the API server does not answer: {error}"]
        else:
            found = [[one for one in pods if not one.leaving and not one.ended] for pods in found]
            everyone = [one for pods in found for one in pods]
            await _check_start(cluster, everyone)
            waiting = [one.describe() for one in everyone if not one.ready]
            waiting += [
                f"no pod has the labels {selector}"
                for selector, pods in zip(selectors, found, strict=True)
                if not pods
            ]
            if not waiting:
                return found
        now, told = time.monotonic(), "; ".join(waiting)
        if now - began >= timeout_s:
            raise LaunchError(
                f"not ready after {timeout_s:g} s: {told}",
                hint="kubectl describe pod shows why; launcher.ready_timeout_s is the limit.",
            )
        if first or now - said >= TELL_S:
            said = now
            notify(f"waiting for pods: {told}")
        first = False
        await asyncio.sleep(min(poll_s, timeout_s))


async def _check_start(cluster: Cluster, pods: Sequence[PodState]) -> None:
    for pod in pods:
        if (stuck := pod.find_stuck()) is None:
            continue
        crashed = stuck.restarts > 0
        lines = await read_last_lines(cluster, pod.name, stuck.name, previous=crashed)
        how = f"; its last process ended with {stuck.ended}" if stuck.ended else ""
        told = f"pod {pod.name}: container {stuck.name}: {stuck.waiting}{how}"
        if stuck.message:
            told += f": {stuck.message}"
        known = cause("\n".join(lines))
        hint = f"{known[1]} " if known else ""
        raise LaunchError(
            "\n  ".join([f"{told}: {known[0]}" if known else told, *lines]),
            hint=f"{hint}kubectl describe pod {pod.name} -n {cluster.namespace} shows more.",
        )


async def wait_for_completion(
    base_url: str,
    model: str,
    *,
    name: str,
    timeout_s: float,
    notify: Callable[[str], None],
    trouble: Callable[[], str] = lambda: "",
) -> None:
    """Return once the servers at an address have answered one completion.

    An answer that asks for an API key is enough: the run has the key. `trouble` returns what the
    way to the address is known to suffer from, and may raise. Raises LaunchError.
    """
    began, last, refusals = time.monotonic(), "no answer", Refusals()
    async with httpx.AsyncClient(trust_env=False, base_url=base_url) as client:
        while (left := timeout_s - (time.monotonic() - began)) > 0:
            try:
                reply = await _ask(client, model, left)
            except httpx.HTTPError as error:
                last = trouble() or f"{type(error).__name__} {error}".strip()
            else:
                if reply.status_code in NEEDS_KEY:
                    notify(f"{name}: it answers, and asks for an API key")
                    return
                if reply.status_code == 200 and _has_choices(reply):
                    notify(f"{name}: the first completion took {time.monotonic() - began:.1f} s")
                    return
                last = (
                    "it reports that it is starting"
                    if loading.says_so(reply)
                    else f"HTTP {reply.status_code} {reply.text[:500]}"
                )
                if refusals.permanent(reply.status_code, reply.text):
                    last = f"refused {SAME} times in the same way: {last}"
                    break
            await asyncio.sleep(ASK_AGAIN_S)
    raise LaunchError(
        f"{name} is Ready but returns no completion within {timeout_s:g} s: {last}"
        if not last.startswith("refused")
        else f"{name} is Ready but returns no completion: {last}"
    )


async def _ask(client: httpx.AsyncClient, model: str, timeout_s: float) -> BoundedReply:
    body = {"model": model, "max_tokens": 4, "temperature": 0.0}
    reply = await bounded_reply.request(
        client, "POST", "/completions", body={**body, "prompt": "Hello"}, timeout_s=timeout_s
    )
    if reply.status_code not in (404, 405):
        return reply
    chat = {**body, "messages": [{"role": "user", "content": "Hello"}]}
    other = await bounded_reply.request(
        client, "POST", "/chat/completions", body=chat, timeout_s=timeout_s
    )
    return other if other.status_code not in (404, 405) else reply


def _has_choices(reply: BoundedReply) -> bool:
    try:
        return bool(reply.json().get("choices"))
    except (ValueError, AttributeError):
        return False
