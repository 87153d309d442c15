"""Test that sessions have types for their readers and are unchanged in the file."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from serve_eval.errors import RunFolderError
from serve_eval.schema import Ability, Endpoint, Limits, ServerInfo
from serve_eval.storage.sessions import (
    SessionFile,
    SessionRecord,
    loads,
    own_endpoint,
    read_sessions,
    read_unsupported,
)

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
