"""Serve answers to made-up questions in its own process, and break at random.

The command is `python -m tests.attack.hostile`. The question alone decides whether an answer is
right, so a run under attack must have the same scores as one without. Each answer names its
question, which reveals an answer that reaches another sample.
"""

import argparse
import asyncio
import random
import re
import signal
import sys
from contextlib import suppress
from pathlib import Path

from tests.client import faulty_server as act
from tests.client.faulty_server import FaultyServer
from tests.client.test_faults import FAULTS, REFUSALS

_CASE = re.compile(r"Case (\d+):")


def question(case):
    """Return the question of a case."""
    return f"Case {case}: what is {case} + 1?"


def right(case):
    """Return whether the server answers a case right; it does for four of five."""
    return case * 2654435761 % 2**32 % 5 > 0


def said(case):
    """Return the only answer that a case ever gets."""
    return f"This answers case {case}.\n#### {case + 1 if right(case) else case + 2}"


def case_of(request):
    """Return the case of a request; None for another request, such as the check before a run."""
    found = (
        _CASE.search(request.question)
        if "prompt" in request.body or "messages" in request.body
        else None
    )
    return int(found[1]) if found else None


def _text(request):
    case = case_of(request)
    return "2" if case is None else said(case)


def _answer(request):
    """Return a sound answer without an id, as the hardest servers give it."""
    return act.answer(request, _text(request)).replace(
        f'"id":"cmpl-{request.number}",'.encode(), b"", 1
    )


async def sound(turn):
    """Send the right answer, whole or as a stream, as requested."""
    request = turn.request
    if not request.body.get("stream"):
        await turn.write(act.http(_answer(request)))
        return
    await turn.write(act.STREAM_HEAD)
    for piece in _text(request).split(" "):
        await turn.write(act.chunked(act.chunk(request, f" {piece}")))
    await turn.write(
        act.chunked(act.chunk(request, "", "stop")) + act.chunked(act.DONE) + act.LAST_CHUNK
    )


def _twice(delay_s):
    async def twice(turn):
        """Send the right answer twice, the second time later.

        Another request may have arrived in between.
        """
        await sound(turn)
        if delay_s:
            await asyncio.sleep(delay_s)
        await sound(turn)

    return twice


def _twice_beside(delay_s):
    async def beside(turn):
        """Send the right answer again later, perhaps while the next request is being answered."""
        await sound(turn)
        task = asyncio.create_task(_later(turn, delay_s))
        _BESIDE.add(task)
        task.add_done_callback(_BESIDE.discard)

    return beside


_BESIDE = set()


async def _later(turn, delay_s):
    await asyncio.sleep(delay_s)
    with suppress(OSError):
        if not turn.writer.is_closing():
            await turn.write(act.http(_answer(turn.request)))


async def unasked_error(turn):
    """Send the right answer, and shortly afterwards an error that answers nothing."""
    await sound(turn)
    await asyncio.sleep(0.003)
    await turn.write(act.http(b'{"error": "gone"}', "500 Internal Server Error"))


async def marked_stream(turn):
    """Send a sound stream that begins with a byte order mark."""
    request = turn.request
    body = (
        b"\xef\xbb\xbf"
        + act.chunk(request, _text(request))
        + act.chunk(request, "", "stop")
        + act.DONE
    )
    await turn.write(act.STREAM_HEAD + act.chunked(body) + act.LAST_CHUNK)


async def two_streams(turn):
    """Send the chunks of this answer and of another one in turn, under two ids."""
    request, other = turn.request, (case_of(turn.request) or 0) + 1

    def piece(name, text, finish=None):
        chunk = act.chunk(request, text, finish)
        return act.chunked(chunk.replace(b"data: {", f'data: {{"id":"{name}",'.encode(), 1))

    await turn.write(act.STREAM_HEAD)
    for mine, theirs in zip(_text(request).split(" "), said(other).split(" "), strict=False):
        await turn.write(piece("one", f" {mine}") + piece("two", f" {theirs}"))
    await turn.write(
        piece("one", "", "stop") + piece("two", "", "stop") + act.chunked(act.DONE) + act.LAST_CHUNK
    )


async def text_after_the_finish(turn):
    """Send a sound stream whose text continues after its finish_reason."""
    request = turn.request
    whole = (
        act.chunk(request, _text(request))
        + act.chunk(request, "", "stop")
        + act.chunk(request, "7\n#### 7")
    )
    await turn.write(act.STREAM_HEAD + act.chunked(whole + act.DONE) + act.LAST_CHUNK)


async def foreign_choice(turn):
    """Send an answer whose only choice has the index 1."""
    await turn.write(act.http(_answer(turn.request).replace(b'"index":0', b'"index":1')))


async def unfinished(turn):
    """Send half of an answer, valid HTTP and JSON, without a finish_reason."""
    half = act.answer(turn.request, _text(turn.request)[:9], None)
    await turn.write(act.http(half))


async def pings_alone(turn):
    """Send a stream of comments without data."""
    await turn.write(act.STREAM_HEAD)
    for _ in range(600):
        await turn.write(act.chunked(b": ping\n\n"))
        await asyncio.sleep(0.1)


BREAKING = {
    "twice at once": _twice(0.0),
    "twice 2 ms apart": _twice(0.002),
    "twice 20 ms apart": _twice(0.02),
    "twice while the next is asked": _twice_beside(0.3),
    "an unasked error": unasked_error,
    "half of something unasked": act.then_the_beginning_of_another(0.005),
    "408 behind the answer": act.then_408,
    "a byte order mark": marked_stream,
    "two streams in one": two_streams,
    "text behind the finish": text_after_the_finish,
    "a foreign choice": foreign_choice,
    "unfinished": unfinished,
    "pings alone": pings_alone,
    "endless": act.endless,
    "endless stream": act.endless_stream,
    "trickles": act.trickles,
    "switches protocols": act.switches_protocols,
    "a stream that is lost": act.loses_the_stream,
    "cut JSON behind a length": act.cut_json,
    "silent after [DONE] of nothing": act.loses_the_stream_and_stays,
}
"""Faults in addition to those of the client's own tests; the first seven break HTTP itself."""

ALL = {
    **{name: fault for name, (fault, _, _) in FAULTS.items()},
    **{name: fault for name, (fault, _) in REFUSALS.items()},
    **BREAKING,
}


async def _get(turn):
    """Answer requests other than completions."""
    if turn.request.path.endswith("/models"):
        await turn.write(
            act.http(b'{"object":"list","data":[{"id":"m","object":"model","owned_by":"test"}]}')
        )
    else:
        await turn.write(act.http(b'{"detail":"Not Found"}', "404 Not Found"))


def script(*, share, seed, latency_s, faults):
    """Break that share of the requests.

    The way is drawn by the seed, the number and the case of the request.
    """
    ways = list(faults.values())

    def chosen(request):
        if request.method != "POST":
            return _get
        case = case_of(request)
        if case is None:
            return sound
        rng = random.Random(f"{seed} {request.number} {case}")
        wait_s = latency_s * rng.uniform(0.2, 1.8)
        return act.later(wait_s, rng.choice(ways) if rng.random() < share else sound)

    return chosen


async def _serve(told):
    act.echo = _text  # the text that acts of the client's tests send
    faults = {name: ALL[name] for name in told.faults.split(",")} if told.faults else ALL
    ended = asyncio.Event()
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, ended.set)
    how = script(share=told.share, seed=told.seed, latency_s=told.latency_s, faults=faults)
    async with FaultyServer(how) as server:
        Path(told.ready_file).write_text(server.base_url)
        await ended.wait()


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--ready-file", required=True)
    parser.add_argument("--share", type=float, default=0.1)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--latency-s", type=float, default=0.1)
    parser.add_argument("--faults", default="", help="names, separated by commas; all without")
    try:
        asyncio.run(_serve(parser.parse_args()))
    except KeyboardInterrupt:
        sys.exit(130)


if __name__ == "__main__":
    main()
