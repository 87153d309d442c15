"""Options of `serve-eval verify`."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, ClassVar

from serve_eval.plugins.setting import Setting

if TYPE_CHECKING:
    from serve_eval.schema import ProbeRoute


@dataclass(frozen=True, kw_only=True)
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


@dataclass(frozen=True, kw_only=True)
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


@dataclass(frozen=True, kw_only=True)
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


@dataclass(frozen=True, kw_only=True)
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
