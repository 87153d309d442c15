"""Test what the counters of servers say about the path of the probes."""

from __future__ import annotations

import pytest

from serve_eval.schema import EngineCounts, ServerCounts
from serve_eval.workflows.verify.legs import describe_path, warn_of_path


def _server(role: str, moved: int | None, *, faults: int = 0) -> ServerCounts:
    sources = None if moved is None else {"external_kv_transfer": moved}
    return ServerCounts(
        server=f"{role}_0",
        url="http://h:1",
        role=role,
        counts=EngineCounts(
            prompt_tokens=5000,
            prompt_tokens_by_source=sources,
            transfer_faults={"failed transfers": faults},
        ),
    )


@pytest.mark.parametrize(
    ("servers", "told", "warned"),
    [
        ([], [], []),
        ([_server("context", 0)], [], []),
        ([_server("generation", None)], [], []),
        (
            [_server("context", 0), _server("generation", 4990), _server("generation", 10)],
            ["KV transfer: 5,000 of 10,000 prompt tokens came from other servers"],
            [],
        ),
        (
            [_server("generation", 0)],
            ["KV transfer: 0 of 5,000 prompt tokens came from other servers"],
            ["d: no KV cache crossed the wire: its generation servers computed all 5,000 prompt"],
        ),
        (
            [_server("generation", 5000, faults=2)],
            ["KV transfer: 5,000 of 5,000 prompt tokens came from other servers"],
            ["d: the KV transfer of generation_0 (http://h:1) failed in part: failed transfers 2"],
        ),
    ],
)
def test_a_transfer_is_proven_or_its_absence_is_told(
    servers: list[ServerCounts], told: list[str], warned: list[str]
) -> None:
    assert list(describe_path(servers)) == told
    found = list(warn_of_path("d", servers))
    assert len(found) == len(warned)
    assert all(line.startswith(start) for line, start in zip(found, warned, strict=True))
