"""Describe pods for the report, without secrets. Pure."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from serve_eval.launchers._kubernetes.pods import PodState
from serve_eval.masking import HIDDEN
from serve_eval.processes.child_process import secret
from serve_eval.schema import PodContainer, ServedPod
from serve_eval.secret_signs import holds_secret

_BLANKS = re.compile(r"(\s+)")
_PAIR = re.compile(r"""(["']([\w-]+)["']\s*:\s*(["']))[^"']*(["'])""")
"""A key and its text, as JSON and YAML write them."""


def record_pods(pods: Iterable[PodState], namespace: str) -> tuple[ServedPod, ...]:
    """Return what the report keeps of pods. Variables are left out, as they may be secrets."""
    return tuple(
        ServedPod(
            name=pod.name,
            namespace=namespace,
            uid=pod.uid,
            node=(pod.raw.get("spec") or {}).get("nodeName"),
            containers=tuple(_record_containers(pod)),
        )
        for pod in pods
    )


def _record_containers(pod: PodState) -> list[PodContainer]:
    spec, status = pod.raw.get("spec") or {}, pod.raw.get("status") or {}
    digests = {
        one.get("name"): one.get("imageID")
        for kind in ("initContainerStatuses", "containerStatuses")
        for one in status.get(kind) or ()
    }
    restarts = {one.name: one.restarts for one in pod.containers}
    sidecars = [one for one in spec.get("initContainers") or () if one.get("name") in restarts]
    return [
        PodContainer(
            name=str(one.get("name", "")),
            image=str(one.get("image", "")),
            digest=digests.get(one.get("name")) or None,
            command=_words(one, "command"),
            args=_words(one, "args"),
            restarts=restarts.get(str(one.get("name")), 0),
        )
        for one in (*(spec.get("containers") or ()), *sidecars)
    ]


def _words(container: Mapping[str, Any], key: str) -> tuple[str, ...] | None:
    words = container.get(key)
    return None if words is None else tuple(mask_words([str(word) for word in words]))


def mask_words(words: Sequence[str]) -> list[str]:
    """Return the words of a command line with stars for what looks like a secret.

    Such are a token or key by its form, a password in an address, the word after a flag with the
    name of a secret, and the value of such a flag, variable or JSON key. The words of a script,
    which is one word itself, are masked in the same way.
    """
    masked: list[str] = []
    follows = False
    for word in words:
        if follows and not word.startswith("-"):
            masked.append(HIDDEN)
            follows = False
            continue
        shown = _PAIR.sub(_mask_pair, word)
        pieces = _BLANKS.split(shown)
        if len(pieces) > 1:
            pieces[::2] = mask_words(pieces[::2])
            shown = "".join(pieces)
        else:
            shown = _mask_word(shown)
        follows = len(pieces) == 1 and _is_flag(word)
        masked.append(shown)
    return masked


def _is_flag(word: str) -> bool:
    return word.startswith("-") and "=" not in word and secret(word.lstrip("-"))


def _mask_word(word: str) -> str:
    name, equals, value = word.partition("=")
    if equals and value and secret(name.lstrip("-")):
        return f"{name}={HIDDEN}"
    if holds_secret(word):
        return f"{name}={HIDDEN}" if equals else HIDDEN
    return word


def _mask_pair(found: re.Match[str]) -> str:
    return f"{found[1]}{HIDDEN}{found[4]}" if secret(found[2]) else found[0]
