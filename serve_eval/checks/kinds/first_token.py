"""Check that an answer begins alike however it is sent: one token, cut, and as a stream.

Behind an orchestrator the context server gives the first token and another server the others, which
is where versions lost or doubled it. MLPerf's test TEST06 compares the same.
"""

from __future__ import annotations

from serve_eval.checks.answer import NotAnswered, read_stream, short
from serve_eval.checks.kinds.ending import COUNT, FEW
from serve_eval.checks.row import CheckResult, fail_check, pass_check, report_unsupported
from serve_eval.checks.session import Check, CheckSession


async def first_token(session: CheckSession) -> CheckResult:
    """Compare an answer of one token and a streamed one with a whole answer."""
    if session.known.greedy_varies:
        return report_unsupported("answers vary at temperature 0")
    whole = (await session.ask(COUNT, max_tokens=FEW)).first.said
    one = await session.ask(COUNT, max_tokens=1)
    answer = await session.post(session.body(COUNT, max_tokens=FEW, stream=True))
    if not whole.startswith(one.first.said):
        return fail_check(
            f"one token is {short(one.first.said)!r}, but {FEW} are {short(whole)!r}", one.sent
        )
    if answer.status != 200 or answer.problem:
        raise NotAnswered(answer)
    if not answer.streams:
        return report_unsupported("stream was ignored: a complete response came", answer.sent)
    streamed = read_stream(answer).said
    if streamed != whole:
        how = "differs from"
        if streamed and whole.endswith(streamed):
            how = "lacks the beginning of"
        elif streamed.endswith(whole):
            how = "repeats the beginning of"
        return fail_check(
            f"the stream {short(streamed)!r} {how} the whole answer {short(whole)!r}", answer.sent
        )
    return pass_check(f"{short(one.first.said)!r} in all three")


CHECKS = (
    Check(name="first_token", run=first_token, requests=3, tokens=2 * FEW + 1, prompt_tokens=90),
)
