"""Wait until all servers are alive and healthy and the endpoint returns a completion."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import asynccontextmanager, suppress
from typing import Any

from serve_eval.errors import LaunchError
from serve_eval.launchers._fleet import loading
from serve_eval.launchers._fleet.running import Running, Watching, first_end
from serve_eval.launchers._logs.causes import SAME, Refusals, find_known
from serve_eval.launchers._process.server_process import WATCH_S
from serve_eval.launchers._trtllm.command_line import Server
from serve_eval.launchers._trtllm.servers import ORCHESTRATOR

POLL_S, FIRST_POLL_S = 0.5, 0.05
"""Seconds between two checks of the servers, in the end and at first: some are ready immediately,
and most take minutes."""
HEALTH_S, OTHERS_S = 5.0, 1.0
"""Seconds to wait for an answer, and for that of a server that need not answer."""
UNREADY_S = 1.0
"""Seconds that an orchestrator that never was ready may take to end. It waits for its servers where
it heeds no SIGTERM, and has nothing to save. Workers keep their time: their ranks free GPUs."""
TELL_S = 10.0
"""Seconds between two messages about what the launch waits for."""


async def ready(
    running: Sequence[Running],
    *,
    watching: Watching,
    front: Server,
    model: str,
    timeout_s: float,
    answer_timeout_s: float,
    notify: Callable[[str], None],
    cluster: bool = False,
) -> None:
    """Return once every server is healthy and the endpoint has answered one completion.

    With `cluster`, the request to the orchestrator is /cluster_info, and the other servers, which
    register with it, need not answer. `watching` gets the names of healthy servers. Raises
    LaunchError if a server ends, after `timeout_s` seconds for the servers, and after
    `answer_timeout_s` more for the completion.
    """
    import httpx

    began, said = time.monotonic(), time.monotonic()
    waiting = {
        one.server.name: one for one in running if not cluster or one.server.name == front.name
    }
    unheard = {one.server.name for one in running} - waiting.keys()
    starting: set[str] = set()
    async with (
        _hurry_orchestrator(waiting),
        httpx.AsyncClient(trust_env=False, timeout=HEALTH_S) as client,
    ):
        while waiting:
            for name, one in list(waiting.items()):
                if await _healthy(client, one.server, cluster, starting):
                    watching.is_well(name)
                    notify(f"{name}: ready after {time.monotonic() - one.began:.0f} s")
                    del waiting[name]
            if cluster:
                others = [one.server for one in running if one.server.name in unheard]
                heard = await asyncio.gather(
                    *(_healthy(client, one, False, starting, OTHERS_S) for one in others)
                )
                for server in (one for one, healthy in zip(others, heard, strict=True) if healthy):
                    watching.is_well(server.name)
                    unheard.remove(server.name)
            _check_alive(running)
            now = time.monotonic()
            if waiting and now - began > timeout_s:
                one = next(iter(waiting.values()))
                says = ", it reports that it is starting" if one.server.name in starting else ""
                raise one.error(f"{', '.join(waiting)} not ready after {timeout_s:g} s{says}")
            if now - said > TELL_S:
                said = now
                for one in running if cluster else waiting.values():
                    says = ", it reports that it is starting" if one.server.name in starting else ""
                    notify(
                        f"{one.server.name}: not ready after {now - one.began:.0f} s{says}; its"
                        f" log: {one.last_line()}"
                    )
            if waiting:
                await asyncio.sleep(min(POLL_S, FIRST_POLL_S + (now - began) / 100))
        watching.all_are_well()
        await _wait_for_answer(
            client, running, front, model, answer_timeout_s, notify, start_timeout_s=timeout_s
        )


@asynccontextmanager
async def _hurry_orchestrator(waiting: Mapping[str, Running]) -> AsyncIterator[None]:
    """Give an orchestrator among those still `waiting` little time to end if the block fails."""
    try:
        yield
    except BaseException:
        if (one := waiting.get(ORCHESTRATOR)) is not None:
            one.process.hurry(UNREADY_S)
        raise


async def _healthy(
    client: Any, server: Server, cluster: bool, starting: set[str], timeout_s: float = HEALTH_S
) -> bool:
    """Return True if a server is ready.

    `starting` gets the names of servers that report that they load their model.
    """
    import httpx

    starting.discard(server.name)
    with suppress(httpx.TransportError, ValueError):
        url = server.url + ("/cluster_info" if cluster else server.health)
        reply = await loading.request(client, "GET", url, timeout_s=timeout_s)
        if loading.says_so(reply):
            starting.add(server.name)
        return reply.status_code == 200 and (not cluster or bool(reply.json().get("is_ready")))
    return False


async def _wait_for_answer(
    client: Any,
    running: Sequence[Running],
    front: Server,
    model: str,
    timeout_s: float,
    notify: Callable[[str], None],
    *,
    start_timeout_s: float,
) -> None:
    """Wait for one real completion.

    Health does not show whether the engine works, or the connection between two of them. Time
    during which the server reports that it is starting counts towards `start_timeout_s`, not
    `timeout_s`.
    """
    import httpx

    began, last, refusals, permanent = time.monotonic(), "no answer", Refusals(), False
    said = began
    body = {"model": model, "prompt": "Hello", "max_tokens": 4, "temperature": 0.0}
    end, most = began + timeout_s, began + timeout_s + start_timeout_s
    while not permanent and (left := end - (sent := time.monotonic())) > 0:
        asked = asyncio.create_task(
            loading.request(
                client, "POST", front.url + "/v1/completions", body=body, timeout_s=left
            )
        )
        try:
            while not (await asyncio.wait([asked], timeout=WATCH_S))[0]:
                _check_alive(running)
                said = _tell(front, began, said, last, notify)
            reply = asked.result()
            if reply.status_code == 200 and reply.json().get("choices"):
                notify(f"{front.name}: the first completion took {time.monotonic() - began:.1f} s")
                return
            last = f"HTTP {reply.status_code} {reply.text[:500]}"
            permanent = refusals.permanent(reply.status_code, reply.text)
            if loading.says_so(reply):
                last, end = (
                    "it reports that it is starting",
                    min(most, end + time.monotonic() - sent + POLL_S),
                )
        except httpx.TimeoutException:
            last = "no answer at all"
        except (httpx.TransportError, ValueError) as error:
            last = f"{type(error).__name__} {error}"
        finally:
            asked.cancel()
        _check_alive(running)
        said = _tell(front, began, said, last, notify)
        await asyncio.sleep(0 if permanent else POLL_S)
    [door] = [one for one in running if one.server.name == front.name]
    how = f"refused {SAME} times in the same way" if permanent else f"within {timeout_s:g} s"
    refusal = door.error(f"{front.name} is healthy but returns no completion {how}: {last}")
    if (known := find_known(last, front.engine)) is not None:
        hint = f"{known.remedy(front.engine)} {refusal.hint}"
        refusal = LaunchError(f"{refusal}\n  {known.told}", hint=hint)
    raise refusal


def _tell(
    front: Server, began: float, said: float, last: str, notify: Callable[[str], None]
) -> float:
    """Report that there is no completion yet, at most every TELL_S seconds.

    Returns the time of the last report.
    """
    if (now := time.monotonic()) - said <= TELL_S:
        return said
    notify(f"{front.name}: no completion after {now - began:.0f} s: {last[:160]}")
    return now


def _check_alive(running: Sequence[Running]) -> None:
    if (error := first_end(running)) is not None:
        raise error
