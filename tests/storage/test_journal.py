"""Test the journal of a run, and its typed records of sessions."""

from __future__ import annotations

import json
import os
import resource
import signal
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from serve_eval.errors import JournalError, RunFolderError
from serve_eval.schema import (
    Ability,
    Attempt,
    Endpoint,
    Failure,
    FailureKind,
    Limits,
    Response,
    ServerInfo,
    Usage,
)
from serve_eval.storage.journal import (
    Journal,
    Record,
    StoredResponses,
    index_lines,
    read_at,
    scan,
    withdrawals,
)
from serve_eval.storage.sessions import (
    SessionFile,
    SessionRecord,
    loads,
    own_endpoint,
    read_sessions,
    read_unsupported,
)

ANSWER = Response(
    text="#### 7",
    finish_reason="stop",
    usage=Usage(prompt_tokens=3, completion_tokens=2),
    latency_s=0.5,
    attempts=(Attempt(start_s=0.0, end_s=0.5, failure=None, status=200, request_id="a-1"),),
)
FAILED = Failure(kind=FailureKind.HTTP_ERROR, message="HTTP 500", status=500)


def test_records_come_back_as_they_were_written(tmp_path: Path) -> None:
    records = [Record(id="1", response=ANSWER), Record(id="2", failure=FAILED)]
    with Journal(tmp_path / "j") as journal:
        for record in records:
            journal.append(record)
        assert list(journal.records()) == records
        assert list(journal.records(b'"status":500')) == records[1:]
    assert (tmp_path / "j").stat().st_mode & 0o777 == 0o600


@given(st.text(), st.integers(0, 400))
def test_a_file_cut_anywhere_keeps_its_whole_records(
    tmp_path_factory: pytest.TempPathFactory, text: str, cut: int
) -> None:
    path = tmp_path_factory.mktemp("journal") / "j"
    with Journal(path) as journal:
        for i in range(3):
            journal.append(Record(id=str(i), response=Response(text=text, finish_reason="stop")))
    content = path.read_bytes()
    path.write_bytes(content[: max(0, len(content) - cut)])
    with Journal(path) as journal:
        whole = list(journal.records())
        assert [record.id for record in whole] == [str(i) for i in range(len(whole))]
        assert bool(journal.dropped_bytes) == (
            not content[: max(0, len(content) - cut)].endswith(b"\n") and cut < len(content)
        )
        journal.append(Record(id="new", failure=FAILED))
        assert [record.id for record in journal.records()][-1] == "new"


def test_a_damaged_record_in_the_middle_is_named(tmp_path: Path) -> None:
    with Journal(tmp_path / "j") as journal:
        journal.append(Record(id="1", response=ANSWER))
    (tmp_path / "j").write_bytes(b'{"id": \n' + (tmp_path / "j").read_bytes())
    with (
        Journal(tmp_path / "j") as journal,
        pytest.raises(RunFolderError, match=r"j:1: a damaged record"),
    ):
        list(journal.records())


def test_each_record_is_found_at_its_offset_even_if_it_was_withdrawn(tmp_path: Path) -> None:
    path = tmp_path / "j"
    records = [
        Record(id="1", response=ANSWER),
        Record(id="1", withdrawn="why"),
        Record(id="ä", failure=FAILED),
    ]
    with Journal(path) as journal:
        for record in records:
            journal.append(record)
    content = path.read_bytes()
    path.write_bytes(content + b'{"id": "torn')
    found = list(index_lines(path))
    assert [one for one, _, _ in found] == ["1", "1", "ä"]
    lines = [content[start : start + size] for _, start, size in found]
    assert lines == content.splitlines(keepends=True)
    assert withdrawals(path) == {"1": 2}
    scanned = [(at, one.id, one.withdrawn) for at, one in scan(path)]
    assert scanned == [
        (start, record.id, record.withdrawn)
        for (_, start, _), record in zip(found, records, strict=True)
    ]
    offsets = [start for _, start, _ in found]
    assert list(read_at(path, reversed(offsets))) == records[::-1]


def test_a_damaged_withdrawal_is_named(tmp_path: Path) -> None:
    (tmp_path / "j").write_bytes(b'{"id":"1"}\n{"id":"1","withdrawn":7}\n')
    with pytest.raises(RunFolderError, match=r"/j:2: a damaged record"):
        withdrawals(tmp_path / "j")


def test_a_record_is_on_disk_when_append_returns_even_if_the_process_is_killed(
    tmp_path: Path,
) -> None:
    script = f"""
        import os, signal
        from pathlib import Path
        from serve_eval.storage.journal import Journal, Record, StoredResponses
        from serve_eval.schema import Response
        journal = Journal(Path({str(tmp_path / "j")!r}))
        for i in range(100):
            journal.append(Record(id=str(i), response=Response(text="x", finish_reason="stop")))
        os.kill(os.getpid(), signal.SIGKILL)
    """
    done = subprocess.run([sys.executable, "-c", textwrap.dedent(script)], check=False, timeout=30)
    assert done.returncode == -signal.SIGKILL
    with Journal(tmp_path / "j") as journal:
        assert len(list(journal.records())) == 100


def test_a_full_device_stops_the_run_with_advice() -> None:
    if not Path("/dev/full").exists():
        pytest.skip("this system has no /dev/full")
    journal = Journal(Path("/dev/full"))
    with journal, pytest.raises(JournalError, match="No space left") as caught:
        journal.append(Record(id="1", response=ANSWER))
    assert "kept" in caught.value.hint


def test_a_file_size_limit_leaves_whole_records_only(tmp_path: Path) -> None:
    pid = os.fork()
    if pid == 0:  # the limit must not outlive the test
        resource.setrlimit(resource.RLIMIT_FSIZE, (2000, 2000))
        try:
            with Journal(tmp_path / "j") as journal:
                for i in range(100):
                    journal.append(Record(id=str(i), response=ANSWER))
        except JournalError:
            os._exit(7)
        os._exit(0)
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 7
    content = (tmp_path / "j").read_bytes()
    assert content.endswith(b"\n")
    with Journal(tmp_path / "j") as journal:
        assert journal.dropped_bytes == 0
        assert 3 <= len(list(journal.records())) < 10


def test_stored_responses_are_the_first_that_count(tmp_path: Path) -> None:
    def said(text: str) -> Response:
        return Response(text=text, finish_reason="stop")

    with Journal(tmp_path / "j") as journal:
        for record in (
            Record(id="gone", response=said("unproven")),
            Record(id="kept", response=said("first")),
            Record(id="gone", withdrawn="no proof"),
            Record(id="lost", failure=FAILED),
            Record(id="kept", response=said("second")),
            Record(id="gone", response=said("asked again")),
        ):
            journal.append(record)
    stored = StoredResponses(tmp_path / "j")
    try:
        assert {name: one.text for name, one in stored.items()} == {
            "kept": "first",
            "gone": "asked again",
        }
        assert "lost" not in stored
    finally:
        stored.close()


ENDPOINT = Endpoint(
    base_url="http://h/v1", model="m", info=ServerInfo(hidden_retries={"context": 2})
)
LACKING = Ability(need="chat", works=False, seen="404")
SESSION = {
    "started_at": "2026-11-21T12:00:00+00:00",
    "endpoint": ENDPOINT,
    "limits": Limits(concurrency=4),
    "unsupported": {"gsm8k": LACKING},
    "extensions": {"tasks.mine": {"origin": "mine.py", "sha256": "aa"}},
    "of a newer version": [1, {"b": None}],
}


def test_a_session_is_read_as_it_was_noted(tmp_path: Path) -> None:
    SessionFile(tmp_path).note_session(SESSION)
    [session] = read_sessions(tmp_path)
    assert (session.endpoint, session.limits, session.load) == (
        ENDPOINT,
        Limits(concurrency=4),
        None,
    )
    assert (session.own, session.extensions["tasks.mine"].sha256) == (True, "aa")
    assert read_unsupported(tmp_path) == {"gsm8k": LACKING}
    assert session.endpoint.info.hidden_retries == {"context": 2}
    assert loads(tmp_path) == ()


def test_what_this_version_does_not_know_stays_when_a_session_changes(tmp_path: Path) -> None:
    noted = SessionFile(tmp_path)
    noted.note_session(SESSION)
    noted.note_endpoint(Endpoint(base_url="http://other/v1"))
    noted.note_session({"endpoint": ENDPOINT})
    assert noted.read() == read_sessions(tmp_path), "what is kept is what the file holds"
    first, second = read_sessions(tmp_path)
    assert first.stored["of a newer version"] == [1, {"b": None}]
    assert (first.endpoint.base_url, first.own, second.own) == ("http://other/v1", True, True)


def test_a_session_of_an_older_version_has_defaults_for_what_it_did_not_note(
    tmp_path: Path,
) -> None:
    (tmp_path / "environment.json").write_text('[{"started_at": "2025-01-01T00:00:00+00:00"}]')
    [session] = read_sessions(tmp_path)
    assert (session.endpoint, session.limits, session.abilities, session.own) == (
        SessionRecord().endpoint,
        None,
        (),
        False,
    )


def test_an_endpoint_that_was_changed_by_hand_is_not_the_users_own(tmp_path: Path) -> None:
    SessionFile(tmp_path).note_session(SESSION)
    file = tmp_path / "environment.json"
    content = json.loads(file.read_text())
    content[0]["endpoint"]["base_url"] = "http://elsewhere/v1"
    content[0]["own"], content[0]["stored"] = True, {}
    file.write_text(json.dumps(content))
    assert not own_endpoint(tmp_path)
    assert read_sessions(tmp_path)[0].stored["endpoint"]["base_url"] == "http://elsewhere/v1"


@pytest.mark.parametrize(
    "content", ["{", "{}", '[{"endpoint": {"model": "m"}}]', '[{"limits": {"concurrency": []}}]']
)
def test_a_damaged_file_is_told(tmp_path: Path, content: str) -> None:
    (tmp_path / "environment.json").write_text(content)
    with pytest.raises(RunFolderError, match=r"environment\.json cannot be read") as refused:
        read_sessions(tmp_path)
    assert refused.value.hint == "Delete it. It is only informative."
