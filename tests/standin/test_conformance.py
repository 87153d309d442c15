"""Compare the stand-in with the recorded serving layer, where the recordings are at hand."""

from __future__ import annotations

import asyncio

import pytest

from tests.standin import conformance


@pytest.mark.skipif(
    not conformance.RECORDED.is_file(), reason="the recordings are not next to the checkout"
)
def test_the_stand_in_answers_as_the_serving_layer_but_for_what_is_listed() -> None:
    rows = conformance.read()
    found = asyncio.run(conformance.compare(rows))
    unlike = {
        case.partition(" ")[2]
        for case, all_of in found.items()
        if any(not one.startswith("text ") for one in all_of)
    }
    assert len(found) > 200
    assert unlike <= set(conformance.ENGINE)


@pytest.mark.parametrize(
    ("theirs", "ours", "unlike"),
    [
        ((200, '{"a": 1}', False), (200, '{"a": 2}', False), []),
        ((200, '{"a": 1}', False), (400, '{"a": 2}', False), ["status 200, ours 400"]),
        ((200, '{"a": [{"b": 1}]}', False), (200, '{"a": []}', False), ["keys lacking: .a[].b"]),
        ((200, "{}", False), (200, '{"c": null}', False), ["keys of ours alone: .c"]),
        ((400, '{"detail": "x"}', False), (400, '{"detail": "y"}', False), ["text 'x', ours 'y'"]),
    ],
)
def test_a_difference_is_named(
    theirs: tuple[int, str, bool], ours: tuple[int, str, bool], unlike: list[str]
) -> None:
    shapes = [
        conformance.shape_of(status, {"Content-Type": "application/json"}, body, broken=broken)
        for status, body, broken in (theirs, ours)
    ]
    assert list(conformance.list_differences(*shapes)) == unlike


@pytest.mark.parametrize(
    "ours",
    [
        'data: {"a": 1}\n\ndata: [DONE]\n\ndata: [DONE]\n\n',
        'data: {"a": 1}\n\n',
        'data: {"a": 1} \n\ndata: [DONE]\n\n',
        'data: {"error": 1}\n\ndata: [DONE]\n\n',
        'data: {"a": 1, "b": 1}\n\ndata: [DONE]\n\n',
    ],
)
def test_streams_are_compared_by_events_and_ends(ours: str) -> None:
    events = {"content-type": "text/event-stream; charset=utf-8"}
    theirs = 'data: {"a": 1}\n\ndata: {"a": 2}\n\ndata: [DONE]\n\n'
    one, other, same = (
        conformance.shape_of(200, events, body, broken=False)
        for body in (theirs, ours, theirs.replace('data: {"a": 2}\n\n', ""))
    )
    assert not list(conformance.list_differences(one, same))
    assert list(conformance.list_differences(one, other))
