"""Types of the probes with which a reference shows that a deployment is the same one."""

from __future__ import annotations

from msgspec import Struct

from serve_eval.schema.sample import SamplingDefaults
from serve_eval.schema.verification import TokenReading

IDENTITY_VERSION = 1
"""Version of the probes of a reference. Probes of another one are never compared."""


class IdentityReading(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """The beginning of an answer, or a whole one, as the client receives it.

    `tokens` have log-probabilities (none in a whole answer). `calls` are the names and the
    arguments of tool calls. `count` is the number of generated tokens.
    """

    text: str = ""
    thoughts: str = ""
    calls: tuple[tuple[str, str], ...] = ()
    finish: str = ""
    tokens: tuple[TokenReading, ...] = ()
    count: int = 0
    prompt_tokens: int = 0


class IdentityProbe(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A request of a task, by the id of its sample, and the reference's answers to it.

    `again` are the answers to the same request, asked again.
    """

    id: str
    reading: IdentityReading
    again: tuple[IdentityReading, ...] = ()


class IdentityProbes(Struct, frozen=True, kw_only=True):
    """The probes of a task that a reference holds, as stored next to its scores.

    `probes` are a random sample of the task's requests, answered with `length` tokens. `whole` are
    requests that were answered to the end, twice alike. `fingerprint` is that of the task, `stream`
    and `concurrency` say how they were asked, and `defaults` what the server adds to requests.
    """

    version: int = IDENTITY_VERSION
    task: str
    made_at: str
    source: str
    fingerprint: dict[str, str]
    stream: bool
    concurrency: int
    length: int
    defaults: SamplingDefaults
    probes: tuple[IdentityProbe, ...]
    whole: tuple[IdentityProbe, ...]
