"""List the tests of both transports that aiohttp fails, and the reasons.

A listed test must fail.
"""

from __future__ import annotations

NO_PROOF = (
    "It chooses the connection of each request, so no request can prove that a connection is in"
    " step."
)
NO_STRAY = (
    "It takes bytes that came unasked for the answer to the next request, and does not tell of"
    " them."
)
NO_USE = (
    "It does not tell when it used a connection last, so a server that closes behind each answer is"
    " not learned."
)

SHORTFALLS: dict[str, tuple[str, ...]] = {
    NO_PROOF: ("test_an_answer_too_many_before_the_next_one_swaps_nothing",),
    NO_STRAY: (
        "test_what_comes_on_an_idle_connection_is_nobodys_answer[twice, the second late-False]",
        "test_what_comes_on_an_idle_connection_is_nobodys_answer[twice, the second late-True]",
        "test_what_comes_on_an_idle_connection_is_nobodys_answer[408 when idle-False]",
        "test_what_comes_on_an_idle_connection_is_nobodys_answer[408 when idle-True]",
    ),
    NO_USE: (
        "test_a_server_that_closes_behind_every_answer_costs_no_retries_and_soon_no_attempts",
    ),
}
"""Reasons, and the names of the tests that fail for each, with the case if only some fail."""


def reason_of(name: str) -> str | None:
    """Return why aiohttp fails the test that pytest names so, or None if it passes."""
    test, _, case = name.partition("[")
    case = "-".join(part for part in case.removesuffix("]").split("-") if part != "aiohttp")
    whole = f"{test}[{case}]" if case else test
    return next((why for why, names in SHORTFALLS.items() if whole in names or test in names), None)


def table() -> str:
    """Return the list as docs/requests.md shows it."""
    rows = ["| what aiohttp cannot do | tests that it fails |", "|---|---|"]
    return "\n".join(
        [*rows, *(f"| {why} | {_plain(names)} |" for why, names in SHORTFALLS.items())]
    )


def _plain(names: tuple[str, ...]) -> str:
    """Return test names as words, each followed once by its cases."""
    cases: dict[str, list[str]] = {}
    for name in names:
        test, _, case = name.removeprefix("test_").partition("[")
        cases.setdefault(test.replace("_", " "), []).append(
            case.removesuffix("]").rpartition("-")[0]
        )
    return "; ".join(
        test + (f" ({'; '.join(dict.fromkeys(of))})" if any(of) else "")
        for test, of in cases.items()
    )
