"""Declare the options of `serve-eval verify`, and find the servers that it asks."""

from __future__ import annotations

import os
import re
import sys
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, ClassVar

from serve_eval.cli._sides import is_endpoint, resolve_side, with_plan
from serve_eval.errors import PlanError
from serve_eval.frozen import freeze
from serve_eval.plugins.setting import Setting

if TYPE_CHECKING:
    from serve_eval.schema import ProbeRoute
    from serve_eval.workflows.verify.servers import NamedPlan


@freeze
class ReferenceOptions:
    """Choose what servers are compared with."""

    title: ClassVar[str] = "Reference"
    sibling: Annotated[
        list[str] | None,
        Setting(
            (
                "A healthy server of the same weights in another setting, such as another GPU type"
                " or batch size: it measures how much sound numerics differ. Repeatable."
            ),
            metavar="HOST",
        ),
    ] = None
    register: Annotated[
        Path | None, Setting("Write a reference of the one server to this file.", metavar="FILE")
    ] = None
    reference: Annotated[
        Path | None, Setting("Use the reference in this file.", metavar="FILE")
    ] = None
    fleet: Annotated[
        bool, Setting("Use no reference: judge three or more servers by their majority.")
    ] = False
    floor: Annotated[
        float | None,
        Setting("Largest difference of sound numerics, if you know it.", metavar="NATS"),
    ] = None


@freeze
class PartOptions:
    """Choose the servers of a deployment that are asked on their own if it differs."""

    title: ClassVar[str] = "Deployments"
    worker: Annotated[
        list[str] | None,
        Setting(
            (
                "context=URL, generation=URL, or the URL of a complete server (default: those that"
                " the endpoint names). Repeatable."
            ),
            metavar="ROLE=URL",
        ),
    ] = None


@freeze
class ProbeOptions:
    """Choose the probes, and what prompts are compared with."""

    title: ClassVar[str] = "Probes"
    command: ClassVar[str] = "verify"
    probes: Annotated[int | None, Setting("Most probes per server (default 200).", metavar="N")] = (
        None
    )
    budget_tokens: Annotated[
        int | None,
        Setting(
            "Most tokens per server, read and written.",
            metavar="N",
            flag=False,
        ),
    ] = None
    text: Annotated[
        Path | None,
        Setting(
            "Cut the probes from the paragraphs of this file.",
            metavar="FILE",
            flag=False,
        ),
    ] = None
    tokenizer: Annotated[
        str | None,
        Setting(
            "Folder of the model's tokenizer: also compare each server's prompt tokens with it.",
            metavar="DIR",
            flag=False,
        ),
    ] = None


@freeze
class VerifyOutputOptions:
    """Choose the folder and the output."""

    title: ClassVar[str] = "Output"
    output_dir: Annotated[
        Path | None,
        Setting(
            "Folder (default outputs/<time>_verify).", flags=("--output-dir", "-o"), metavar="DIR"
        ),
    ] = None


def choose_route(chat: bool | None) -> ProbeRoute | None:
    """Return the route that the key asks for; None leaves it to the server."""
    from serve_eval.schema import ProbeRoute

    return None if chat is None else ProbeRoute.CHAT if chat else ProbeRoute.TEXT


STDIN = Path("-")
NAME = re.compile(r"\w[\w.-]*")
COMMENT = re.compile(r"(^|\s)#.*")


@freeze
class FurtherServerOptions:
    """Choose more servers than those of the command line."""

    title: ClassVar[str] = "Servers"
    command: ClassVar[str] = "verify"
    server_file: Annotated[
        Path | None,
        Setting(
            (
                "Also take the servers in this file (-: standard input), one per line, each with"
                " or without a name before it."
            ),
            flags=("--servers",),
            metavar="FILE",
        ),
    ] = None
    pods: Annotated[
        str | None,
        Setting(
            "Also take the Ready pods of a Kubernetes cluster with these labels.",
            metavar="SELECTOR",
        ),
    ] = None
    namespace: Annotated[
        str | None,
        Setting(
            "Namespace of the pods (default: that of the context).",
            metavar="NS",
            flag=False,
        ),
    ] = None
    port: Annotated[
        int | None,
        Setting(
            "Port of the servers in the pods (default: the one named http or serve, or the only"
            " one).",
            metavar="N",
            flag=False,
        ),
    ] = None


@freeze
class GivenServer:
    """A server: its name in the output, and its address, plan file or run folder.

    `lasts`: the address is good after the command, too.
    """

    name: str
    text: str
    lasts: bool = True


def check_pods(options: FurtherServerOptions) -> None:
    """Raise PlanError for options of pods that do not fit together."""

    if options.pods is None and (options.namespace is not None or options.port is not None):
        raise PlanError("verify.namespace and verify.port choose pods: give --pods SELECTOR too")
    if options.pods is not None and not options.pods.strip():
        raise PlanError("--pods: expected a label selector, such as app=llama")
    if options.port is not None and not 0 < options.port < 65536:
        raise PlanError(f"verify.port: {options.port} is no port")


def read_servers(file: Path) -> list[GivenServer]:
    """Return the servers in a file, or of standard input for `-`. Raises PlanError."""

    try:
        text = sys.stdin.read() if file == STDIN else file.read_text()
    except (OSError, UnicodeDecodeError) as error:
        raise PlanError(f"--servers {file}: {getattr(error, 'strerror', error)}") from error
    found = list(_parse(text, "--servers " + str(file)))
    if not found:
        raise PlanError(f"--servers {file}: names no server")
    return found


def _parse(text: str, where: str) -> Iterator[GivenServer]:
    for number, line in enumerate(text.splitlines(), start=1):
        words = COMMENT.sub("", line).split()
        if len(words) > 2 or (len(words) == 2 and not NAME.fullmatch(words[0])):
            raise PlanError(
                f"{where}:{number}: expected an address, or a name and an address",
                hint="One server per line: pod-17 http://10.0.0.7:8000. A name has letters,"
                " digits, '-', '_' and '.'.",
            )
        if words:
            yield GivenServer(name=words[0], text=words[-1])


@asynccontextmanager
async def open_given(
    named: Sequence[GivenServer], options: FurtherServerOptions, notify: Callable[[str], None]
) -> AsyncIterator[list[GivenServer]]:
    """Yield servers, and the pods after them. Raises LaunchError if these cannot be reached."""
    if options.pods is None:
        yield list(named)
        return
    from serve_eval.launchers.kubernetes import check_packages, needs_tunnels

    check_packages("--pods")
    from serve_eval.launchers._kubernetes.attach import ChosenPods, reach_pods

    chosen = ChosenPods(
        selector=options.pods,
        namespace=options.namespace,
        port=options.port,
        tunnels=needs_tunnels(os.environ),
    )
    async with reach_pods(chosen, notify) as pods:
        yield [
            *named,
            *(
                GivenServer(name=name, text=url, lasts=not chosen.tunnels)
                for name, url in pods.items()
            ),
        ]


def to_plans(given: Sequence[GivenServer], settings: dict[str, Any]) -> list[NamedPlan]:
    """Return the plans of servers. Raises PlanError for a server that is there twice."""

    plans: list[NamedPlan] = []
    known: dict[str, str] = {}
    for one in given:
        named = to_plan(one, settings)
        keys = _list_keys(named)
        for key in keys & known.keys():
            raise PlanError(f"a server is named twice: {known[key]} and {one.name}")
        known |= dict.fromkeys(keys, one.name)
        plans.append(named)
    return plans


def plan_siblings(
    texts: Sequence[str], named: Sequence[NamedPlan], settings: dict[str, Any]
) -> list[NamedPlan]:
    """Return the plans of siblings. Raises PlanError for one that is a server of the command."""

    found = to_plans([GivenServer(name=text, text=text) for text in texts], settings)
    for sibling in found:
        for other in named:
            if _list_keys(sibling) & _list_keys(other):
                raise PlanError(
                    f"--sibling {sibling.name}: this is the server {other.name} itself, which says"
                    " nothing about other healthy servers",
                    hint="Name another server of the same weights, such as one on another GPU type"
                    " or with another batch size.",
                )
    return found


def _list_keys(named: NamedPlan) -> set[str]:
    """Return what tells a server from others: its name and its addresses."""
    from serve_eval.schema.base_url import list_servers

    url = named.plan.launcher.options.get("base_url")
    return {named.name, *(list_servers(str(url)) if url else ())}


def to_plan(given: GivenServer, settings: dict[str, Any]) -> NamedPlan:
    """Return the plan that reaches or launches a server."""
    from serve_eval.workflows.verify.servers import NamedPlan

    if is_endpoint(given.text):
        plan = with_plan({}, {**settings, "base_url": given.text}).plan
    else:
        plan = resolve_side(given.text, settings)[0].plan
    return NamedPlan(given.name, replace(plan, no_reference=True))
