"""Test that the trials of sound pairs know the accusations by the words that are printed today."""

from __future__ import annotations

import pytest

from serve_eval.evidence.attribution.latency import describe_slow
from serve_eval.evidence.engine_counters import list_transfer_faults, remarks
from serve_eval.processes.resources import describe_busy
from serve_eval.schema import EngineCounts, EngineReport, ServerCounts, WorkerTimes
from tests.vllm.pair_trials import find_accusations

URL = "http://127.0.0.1:1/v1"
SLOW = WorkerTimes(
    worker=URL,
    role="server",
    taken_s=2.6,
    others_s=0.5,
    longer=31,
    answers=34,
    p=0.0,
    p_holm=0.0,
    slow=True,
)


def _counted(**counts: object) -> ServerCounts:
    return ServerCounts(
        server="context_0",
        url=URL,
        counts=EngineCounts(**counts),  # type: ignore[arg-type]
    )


def _others() -> str:
    report = EngineReport(servers=(_counted(requests=90),), sent=40, answered=40)
    return "\n".join(remarks([report]))


@pytest.mark.parametrize(
    ("line", "kind"),
    [
        (
            list_transfer_faults([_counted(transfer_faults={"expired requests": 1})])[0],
            "the transfer failed",
        ),
        (_others(), "other clients"),
        (describe_slow(SLOW), "B is slower"),
    ],
)
def test_an_accusation_is_known(line: str, kind: str) -> None:
    assert [found for found, _ in find_accusations(f"warning: {line}")] == [kind]


def test_what_says_nothing_of_a_server_is_none() -> None:
    line = describe_slow(SLOW).replace("slow_worker", "busy_cores")
    assert find_accusations(f"warning: {line}, {describe_busy(0.97)} it\nPASS") == ()
