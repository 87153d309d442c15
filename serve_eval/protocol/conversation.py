"""Build the next prompt of a conversation from what its server answered so far. Pure.

The history has the turns of the user and the answers of the server, with the results of the tools
that these called. Chat templates of most models leave thoughts of earlier turns out, so they are
dropped by default. Those of the turn under way stay: an agent goes on with its plan between calls.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

import msgspec
from msgspec import UNSET

from serve_eval.schema import (
    CallMessage,
    Conversation,
    Exchange,
    Message,
    Prompt,
    Response,
    ResultMessage,
    Sample,
    ThoughtMessage,
    ToolCall,
    Usage,
)

HISTORY_THOUGHTS = "history_thoughts"
"""The option of a protocol that keeps thoughts in the history."""
SALT_FIELD = "cache_salt"
TURN, SEPARATOR = "turn {}", " | "
"""The name of a turn in tables, which count from 1, and the text between the answers of turns."""


def find_next(sample: Sample, done: Sequence[Exchange]) -> tuple[int, tuple[Message, ...]] | None:
    """Return the turn and the prompt of the next request; None if the conversation has ended."""
    talk = sample.conversation
    assert talk is not None
    assert not isinstance(sample.prompt, str)
    history, turn, calls, rounds = list(sample.prompt), 0, 0, 0
    for exchange in done:
        called = exchange.response.tool_calls
        history += _write_answer(talk, exchange, calls)
        calls += len(called)
        if called and _results(talk, turn) and rounds < talk.rounds:
            rounds += 1
            continue
        if turn == len(talk.turns):
            return None
        if talk.thoughts == "drop":
            history = list(map(_drop_thoughts, history))
        history.append(talk.turns[turn].message)
        turn, rounds = turn + 1, 0
    return turn, tuple(history)


def _results(talk: Conversation, turn: int) -> Mapping[str, str]:
    return talk.results if turn == 0 else {**talk.results, **talk.turns[turn - 1].results}


def list_results(talk: Conversation) -> tuple[Mapping[str, str], ...]:
    """Return the results of the tools in each turn, by name."""
    return tuple(_results(talk, turn) for turn in range(len(talk.turns) + 1))


def tell_result(results: Mapping[str, str], call: ToolCall) -> str:
    """Return the scripted result of a tool call as text."""
    return results.get(call.name, f"There is no tool {call.name}.")


def _write_answer(talk: Conversation, exchange: Exchange, calls: int) -> list[Message]:
    """Return the messages of an answer, and of the results of the tools that it calls.

    `calls` is the number of calls before it. Some templates take ids of nine characters only.
    """
    answer, text = exchange.response, exchange.response.text
    ids = tuple(f"call{calls + i:05d}" for i in range(len(answer.tool_calls)))
    reasoning = answer.reasoning or ""
    told: Message = Message(role="assistant", content=text)
    if reasoning:
        told = ThoughtMessage(
            role="assistant",
            content=text,
            tool_calls=answer.tool_calls,
            call_ids=ids,
            reasoning=reasoning,
            tagged=answer.thoughts_ended,
        )
    elif ids:
        told = CallMessage(
            role="assistant", content=text, tool_calls=answer.tool_calls, call_ids=ids
        )
    known = _results(talk, exchange.turn)
    return [
        told,
        *(
            ResultMessage(
                role="tool",
                content=tell_result(known, call),
                call_id=one,
            )
            for one, call in zip(ids, answer.tool_calls, strict=True)
        ),
    ]


def _drop_thoughts(turn: Message) -> Message:
    if not isinstance(turn, ThoughtMessage):
        return turn
    if not turn.tool_calls:
        return Message(role=turn.role, content=turn.content)
    return CallMessage(
        role=turn.role, content=turn.content, tool_calls=turn.tool_calls, call_ids=turn.call_ids
    )


def list_turns(done: Sequence[Exchange]) -> dict[int, Response]:
    """Return the answer that ended each turn."""
    return {one.turn: one.response for one in done}


def join(done: Sequence[Exchange]) -> Response:
    """Return the response to a finished conversation: its last answer, and the sum of its costs."""
    every = [one.response for one in done]
    last = every[-1]
    cached = [u for one in every if (u := one.usage.cached_tokens) is not None]
    thought = [t for one in every if (t := one.usage.reasoning_tokens) is not UNSET]
    return msgspec.structs.replace(
        last,
        finish_reason="length" if any(one.truncated for one in every) else last.finish_reason,
        usage=Usage(
            prompt_tokens=sum(one.usage.prompt_tokens for one in every),
            completion_tokens=sum(one.usage.completion_tokens for one in every),
            cached_tokens=sum(cached) if cached else None,
            reasoning_tokens=sum(thought) if thought else UNSET,
        ),
        latency_s=sum(one.latency_s for one in every),
        attempts=tuple(attempt for one in every for attempt in one.attempts),
        exchanges=tuple(done),
    )


def change_prompt(sample: Sample, done: Sequence[Exchange]) -> Sample:
    """Return a sample that asks only the next turn; the last one of a finished conversation."""
    found = find_next(sample, done) or find_next(sample, done[:-1])
    assert found is not None
    return replace(sample, prompt=found[1], conversation=None)


def list_prompts(sample: Sample) -> list[Prompt]:
    """Return the prompt of each turn, without the answers before it, which the server gives."""
    if sample.conversation is None or isinstance(sample.prompt, str):
        return [sample.prompt]
    later = [one.message for one in sample.conversation.turns]
    return [(*sample.prompt, *later[:turn]) for turn in range(len(later) + 1)]


def bound_requests(talk: Conversation) -> int:
    """Return the largest number of requests that a conversation may take."""
    turns = range(len(talk.turns) + 1)
    return sum(1 + talk.rounds if _results(talk, turn) else 1 for turn in turns)
