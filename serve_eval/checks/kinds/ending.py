"""Check that an answer begins alike however it is sent, or ends where the request says.

Behind an orchestrator the context server gives the first token and another server the others, which
is where versions lost or doubled it. MLPerf's test TEST06 compares the same.
"""

from __future__ import annotations

import re

from serve_eval.checks.answer import Answer, NotAnswered, read_stream, short
from serve_eval.checks.row import CheckResult, fail_check, pass_check, report_unsupported
from serve_eval.checks.session import ALIVE_TOKENS, Check, CheckSession, require_answer
from serve_eval.client.wire_format.wire import CHAT_COMPLETIONS

COUNT = "Count from 1 to 200: 1, 2, 3, 4, 5,"
FEW = 3
"""Token limit of an answer that has to be cut."""
LONG_TOKEN = 20
"""Characters of text per token. Longer texts show that more tokens were generated than allowed."""
STOP_TOKENS = 24
CUT_OFF_BYTES = 8192
"""Bytes after which reading stops if the answer should have only a few tokens: about 30 streamed
tokens."""


async def max_tokens(session: CheckSession) -> CheckResult:
    answer = await session.ask(COUNT, max_tokens=FEW)
    first, counted = answer.first, answer.tokens()
    session.known.count_tokens = answer.tokens("prompt_tokens")
    if len(first.said) > FEW * LONG_TOKEN or (answer.shown_tokens or 0) > FEW:
        size = f"{counted} tokens" if counted else f"{len(first.said)} characters"
        return fail_check(f"ignored: {size}, although the limit was {FEW} tokens", answer.sent)
    if first.finish != "length" and counted == FEW:
        return fail_check(
            f"cut after {FEW} tokens, but finish_reason is {first.finish!r}", answer.sent
        )
    session.known.goes_on = first.finish == "length"
    size = f"{len(first.said)} characters" if counted is None else f"{counted} of {FEW} tokens"
    return pass_check(f"{size}, {first.finish}")


async def max_completion_tokens(session: CheckSession) -> CheckResult:
    """Check the newer name of max_tokens.

    A server that does not know the field may ignore it. It then generates until this check closes
    the connection.
    """
    if not session.chat:
        return report_unsupported(f"{CHAT_COMPLETIONS} is not answered")
    body = session.body(COUNT, chat=True, max_tokens=FEW, stream=True)
    body.pop("max_tokens", None)
    body["max_completion_tokens"] = FEW
    answer = await session.post(body, most_bytes=CUT_OFF_BYTES)
    if answer.cut_by_us:
        return fail_check(
            f"ignored: the connection was closed after {CUT_OFF_BYTES} bytes", answer.sent
        )
    if answer.status != 200 or answer.problem:
        raise NotAnswered(answer)
    said, finish = _read_said(answer) if answer.streams else _read_said(require_answer(answer))
    if len(said) > FEW * LONG_TOKEN:
        return fail_check(
            f"ignored: {len(said)} characters, although the limit was {FEW} tokens", answer.sent
        )
    if finish == "stop" and session.known.goes_on:
        return fail_check(f"ignored: an answer of more than {FEW} tokens was not cut", answer.sent)
    return pass_check(f"{len(said)} characters")


async def stop(session: CheckSession) -> CheckResult:
    """Use a word of the answer as the stop string: the same answer must then end before it."""
    before = await session.ask_roomy(COUNT, max_tokens=STOP_TOKENS)
    thinking = session.known.thinking
    text = thinking.read_said(before.first)
    if thinking.thinks and not text.strip():
        return report_unsupported(session.tell_cut(), before.sent)
    # Many servers also end thoughts at a stop string.
    place = _stop_place(text, before.first.said.removesuffix(text))
    if place is None:
        return report_unsupported(
            f"the answer has no word to stop at: {short(text)!r}", before.sent
        )
    word = text[place[0] : place[1]]
    answer = await session.ask_roomy(COUNT, max_tokens=STOP_TOKENS, stop=[word])
    first, said = answer.first, thinking.read_said(answer.first)
    if said.rstrip().endswith(word) and first.finish == "stop":
        return fail_check(
            f"the answer ends with the stop string {word!r} instead of before it", answer.sent
        )
    if word in said:
        return fail_check(f"ignored: the answer continues after {word!r}", answer.sent)
    if first.finish != "stop":
        return fail_check(
            f"cut before {word!r}, but finish_reason is {first.finish!r}", answer.sent
        )
    if said.strip() != text[: place[0]].strip():
        return pass_check(f"cut before {word!r}, though the text before it changed")
    return pass_check(f"cut before {word!r}")


def _stop_place(text: str, thoughts: str) -> tuple[int, int] | None:
    """Return the span of the first word, after the first one, that is new in the text.

    It is not in the `thoughts` either. If the text has no such word, as with an untrained model,
    return the span of two new characters.
    """
    pieces = [
        word for piece in (r"\S+", r"[!-~]{2}") for word in list(re.finditer(piece, text))[1:]
    ]
    return next(
        (
            one.span()
            for one in pieces
            if one[0].isprintable() and text.find(one[0]) == one.start() and one[0] not in thoughts
        ),
        None,
    )


async def max_tokens_0(session: CheckSession) -> CheckResult:
    """Send max_tokens 0 once.

    Two such requests crashed the engine of an early trtllm-serve (NVIDIA/TensorRT-LLM issue 7692).
    """
    if session.known.orchestrator:
        return report_unsupported(
            "not sent: an orchestrator may send it to a worker twice, which crashed early versions"
        )
    body = session.body(COUNT, max_tokens=0, stream=True)
    answer = await session.post(body, most_bytes=CUT_OFF_BYTES)
    lives = await session.alive()
    if not lives:
        return fail_check(
            f"{answer.told}; after that a short request was no longer answered", answer.sent
        )
    if answer.refused:
        return pass_check(f"refused: {answer.told}")
    if answer.status != 200 or (answer.problem and not answer.cut_by_us):
        return fail_check(answer.told, answer.sent)
    said, finish = _read_said(answer)
    if (
        answer.cut_by_us
        or len(said) > LONG_TOKEN
        or (said and finish == "stop" and session.known.goes_on)
    ):
        return fail_check("taken as no limit: the answer was not cut", answer.sent)
    return (
        pass_check("an empty answer")
        if not said
        else report_unsupported(f"taken as one token: {short(said)!r}", answer.sent)
    )


def _read_said(answer: Answer) -> tuple[str, str | None]:
    """Return the generated text, streamed or not, and its finish_reason."""
    if answer.streams:
        stream = read_stream(answer)
        return stream.said, stream.finish
    return (answer.first.said, answer.first.finish) if answer.answered else ("", None)


CHECKS = (
    Check("max_tokens", max_tokens, requests=1, tokens=FEW, prompt_tokens=30),
    Check(
        "max_completion_tokens",
        max_completion_tokens,
        requests=1,
        tokens=FEW,
        prompt_tokens=30,
    ),
    Check("stop", stop, requests=2, tokens=2 * STOP_TOKENS, prompt_tokens=60),
)
LAST = (
    Check(
        "max_tokens_0",
        max_tokens_0,
        requests=2,
        tokens=ALIVE_TOKENS,
        prompt_tokens=30,
        full=True,
    ),
)


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


FIRST_TOKEN_CHECKS = (
    Check("first_token", first_token, requests=3, tokens=2 * FEW + 1, prompt_tokens=90),
)
