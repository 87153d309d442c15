"""Send the alarms of a watch to commands and webhooks.

Neither can stop the watch or receive keys that it was not given.

The names include the units. Shares are 0..1.
"""

from __future__ import annotations

import asyncio
import contextlib
import re
import shlex
from collections.abc import Callable, Mapping, Sequence
from urllib.parse import urlsplit

import msgspec

from serve_eval.client.connection import expand
from serve_eval.errors import PlanError
from serve_eval.frozen import freeze
from serve_eval.processes.child_process import inherit
from serve_eval.report.ci_result import OneLine
from serve_eval.schema import Connection
from serve_eval.workflows.watch.record import WatchAlarm

BROKEN = ("failures", "down")
"""Kinds of alarms that are about the endpoint's answering, not about its answers."""
COMMAND_S, WEBHOOK_S = 60.0, 10.0
"""Time limits in seconds of a command and of each attempt at a webhook."""
ATTEMPTS, PAUSE_S = 3, 1.0
_VARIABLE = re.compile(r"\$\{([A-Za-z_][A-Za-z0-9_]*)\}")


@freeze
class Delivery:
    """The destinations of alarms.

    A `${VARIABLE}` in `webhook` is filled in when it is called. `pass_env` names the variables that
    the command gets in addition to those that every program needs.
    """

    command: tuple[str, ...] = ()
    pass_env: tuple[str, ...] = ()
    webhook: str | None = None


def delivery(
    command: str | None,
    webhook: str | None,
    environ: Mapping[str, str],
    pass_env: Sequence[str] = (),
) -> Delivery:
    """Return the destinations of alarms.

    Raises PlanError for a command that is empty or cannot be split, a webhook that is not an
    address, and a variable that is not in the environment.
    """
    try:
        words = tuple(shlex.split(command or ""))
    except ValueError as error:
        raise PlanError(f"--on-alarm-command: {error}") from error
    if command is not None and not words:
        raise PlanError("--on-alarm-command: the command is empty")
    if webhook is not None and not _is_address(expand(webhook, environ, "--webhook")):
        raise PlanError("--webhook: expected http://... or https://...")
    if pass_env and command is None:
        raise PlanError("watch.alarm_env needs --on-alarm-command")
    if missing := [name for name in pass_env if name not in environ]:
        raise PlanError(f"watch.alarm_env: not set in the environment: {', '.join(missing)}")
    return Delivery(command=words, webhook=webhook, pass_env=tuple(pass_env))


def _is_address(url: str) -> bool:
    try:
        parts = urlsplit(url)
        return parts.scheme in ("http", "https") and bool(parts.hostname) and parts.port != 0
    except ValueError:  # A port above 65535, or an incomplete IPv6 address.
        return False


def make_alarm_line(alarm: WatchAlarm, model: str | None, base_url: str) -> OneLine:
    """Return the line about an alarm. Its words have the figures and the likeliest cause."""
    about = " ".join(filter(None, (alarm.name, model, f"at {base_url}")))
    return OneLine("ALARM", about, cause=alarm.told, sure=True)


async def deliver(
    to: Delivery,
    alarm: Mapping[str, object],
    connection: Connection,
    environ: Mapping[str, str],
    notify: Callable[[str], None],
) -> dict[str, bool]:
    """Send an alarm to all destinations concurrently, and return whether each accepted it.

    `notify` receives the errors.
    """
    body = msgspec.json.encode(alarm)
    ways = {}
    if to.command:
        ways["command"] = _run(to.command, body, _for_command(environ, connection, to.pass_env))
    if to.webhook is not None:
        ways["webhook"] = _post(expand(to.webhook, environ, "--webhook"), body)
    results = await asyncio.gather(*ways.values())
    for way, problem in zip(ways, results, strict=True):
        if problem:
            notify(f"warning: the alarm's {way} failed: {problem}")
    return {way: not problem for way, problem in zip(ways, results, strict=True)}


def _for_command(
    environ: Mapping[str, str], connection: Connection, named: Sequence[str]
) -> dict[str, str]:
    """Return the variables for a command: those that every program needs, and the named ones.

    Variables of the endpoint's key, headers and proxy are left out unless they are named.
    """
    texts = [*connection.headers.values(), connection.proxy or ""]
    hidden = {
        "OPENAI_API_KEY",
        connection.api_key_env,
        *(name for text in texts for name in _VARIABLE.findall(text)),
    }
    return {
        name: value
        for name, value in inherit(environ, named).items()
        if name in named or name not in hidden
    }


async def _run(command: tuple[str, ...], body: bytes, environ: Mapping[str, str]) -> str:
    """Run the command with the alarm on its standard input, and return the error, if any."""
    try:
        process = await asyncio.create_subprocess_exec(
            *command, stdin=asyncio.subprocess.PIPE, env=dict(environ)
        )
    except OSError as error:
        return f"{command[0]}: {error.strerror}"
    try:
        async with asyncio.timeout(COMMAND_S):
            # uvloop raises RuntimeError if the command closed its input without reading it.
            with contextlib.suppress(RuntimeError):
                await process.communicate(body + b"\n")
            await process.wait()
    except TimeoutError:
        return f"{command[0]} did not finish within {COMMAND_S:g} s"
    finally:
        if process.returncode is None:
            with contextlib.suppress(ProcessLookupError):
                process.kill()
            await process.wait()
    return f"{command[0]} exited with {process.returncode}" if process.returncode else ""


async def _post(url: str, body: bytes) -> str:
    """Send the alarm, with retries, and return the error, if any.

    The error does not name the address, which may be secret.
    """
    import httpx

    problem = ""
    async with httpx.AsyncClient(timeout=WEBHOOK_S) as client:
        for attempt in range(ATTEMPTS):
            if attempt:
                await asyncio.sleep(PAUSE_S * attempt)
            try:
                async with asyncio.timeout(WEBHOOK_S):
                    headers = {"Content-Type": "application/json"}
                    # The body of the reply says nothing, and is left unread.
                    async with client.stream("POST", url, content=body, headers=headers) as reply:
                        pass
            except Exception as error:  # An unresolvable name may raise any exception.
                problem = type(error).__name__
                continue
            if reply.is_success:
                return ""
            problem = f"HTTP {reply.status_code}"
            if reply.is_client_error and reply.status_code != 429:
                break
    return problem
