"""Types that describe which requests received codes that belong to other requests."""

from __future__ import annotations

from dataclasses import dataclass

from msgspec import Struct

from serve_eval.schema.exchange import Failure, Response
from serve_eval.schema.result_header import ResultHeader


class CanaryRecord(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """One request of a canary pass with everything that came back for it.

    `kind` names the form of its prompt, and `code` is the code that only this prompt has. Each
    attempt that failed is in `failures`; the last one may have given a `response`.
    """

    id: str
    kind: str
    code: str
    chat: bool
    streamed: bool
    response: Response | None = None
    failures: tuple[Failure, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class CanaryLeak:
    """The code of the request `source` in a reply to the request `into`.

    `where` names the part of the reply, such as its text or an error message, and `quote` is the
    text around the code. `together_s` is the time that both requests were in flight together; if
    it is negative, `source` had ended that many seconds before `into` began. `own`: the reply also
    has its own code. `request_ids` are the X-Request-IDs of both, in the order of the names.
    `servers` are those that a router named for both (None: it named none).
    """

    source: str
    into: str
    where: str
    quote: str
    together_s: float
    own: bool
    request_ids: tuple[str, str]
    servers: tuple[str | None, str | None]


@dataclass(frozen=True, slots=True, kw_only=True)
class CanarySuspicion:
    """Parts of codes, at least `length` characters long, in replies to other requests.

    They are parts of `codes` codes, where chance gives `expected`. `p` is the chance of that number
    or more, corrected for the number of lengths. `source` and `into` are an example.
    """

    length: int
    codes: int
    expected: float
    p: float
    source: str
    into: str


@dataclass(frozen=True, slots=True, kw_only=True)
class CanaryResult(ResultHeader):
    """The result of a canary pass, as it is in canaries.json.

    `own` answers repeat the code of their own request; only they would show that whole answers are
    exchanged. `chance` bounds the probability that any of the `leaks` is an accident. `by_kind`
    has, for each form of prompt, its answers and how many of them repeat their own code.
    `leaking` is the number of requests that received another one's code; `leaks` has a row for
    each code that each of them received. `cached_tokens` of `prompt_tokens` came from the server's
    prefix cache (None: not reported).
    """

    base_url: str
    requests: int
    answers: int
    failures: int
    in_flight: int
    own: int
    by_kind: dict[str, tuple[int, int]]
    chance: float
    leaking: int
    leaks: tuple[CanaryLeak, ...]
    suspicion: CanarySuspicion | None
    prompt_tokens: int
    cached_tokens: int | None
