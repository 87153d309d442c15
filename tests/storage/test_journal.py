"""Test the journal of a run, and that other files are replaced whole."""

import ast
import json
import os
import resource
import signal
import stat
import subprocess
import sys
import textwrap
from collections import Counter
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from serve_eval.errors import JournalError, RunFolderError
from serve_eval.schema import (
    Ability,
    Attempt,
    Endpoint,
    Exchange,
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
    read_exchanges,
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
from serve_eval.whole_file import replace_file, replace_named_file, write_named_file, write_whole
from tests.root import ROOT

ANSWER = Response(
    text="#### 7",
    finish_reason="stop",
    usage=Usage(prompt_tokens=3, completion_tokens=2),
    latency_s=0.5,
    attempts=(Attempt(start_s=0.0, end_s=0.5, failure=None, status=200, request_id="a-1"),),
)
FAILED = Failure(kind=FailureKind.HTTP_ERROR, message="HTTP 500", status=500)


def test_records_come_back_as_they_were_written(tmp_path):
    records = [Record(id="1", response=ANSWER), Record(id="2", failure=FAILED)]
    with Journal(tmp_path / "j") as journal:
        for record in records:
            journal.append(record)
        assert list(journal.records()) == records
        assert list(journal.records(b'"status":500')) == records[1:]
    assert (tmp_path / "j").stat().st_mode & 0o777 == 0o600


@given(st.text(), st.integers(0, 400))
def test_a_file_cut_anywhere_keeps_its_whole_records(tmp_path_factory, text, cut):
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


def test_a_damaged_record_in_the_middle_is_named(tmp_path):
    with Journal(tmp_path / "j") as journal:
        journal.append(Record(id="1", response=ANSWER))
    (tmp_path / "j").write_bytes(b'{"id": \n' + (tmp_path / "j").read_bytes())
    with (
        Journal(tmp_path / "j") as journal,
        pytest.raises(RunFolderError, match=r"j:1: a damaged record"),
    ):
        list(journal.records())


def test_each_record_is_found_at_its_offset_even_if_it_was_withdrawn(tmp_path):
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


def test_exchanges_come_back_unless_their_conversation_was_withdrawn(tmp_path):
    path = tmp_path / "j"
    turns = [Exchange(turn=turn, response=ANSWER) for turn in range(3)]
    with Journal(path) as journal:
        journal.append(Record(id="1", exchange=turns[0]))
        journal.append(Record(id="1", response=ANSWER))
        journal.append(Record(id="1", withdrawn="why"))
        journal.append(Record(id="1", exchange=turns[1]))
        journal.append(Record(id="2", exchange=turns[2]))
    assert list(read_exchanges(path)) == [("1", turns[1]), ("2", turns[2])]
    path.write_bytes(path.read_bytes() + b'{"id":"3","exchange":7}\n')
    with pytest.raises(RunFolderError, match=r"/j:6: a damaged record"):
        list(read_exchanges(path))


def test_a_text_that_looks_like_an_exchange_is_none(tmp_path):
    path = tmp_path / "j"
    path.write_bytes(b'{"id":"1","response":null,"exchange":null}\n')
    assert list(read_exchanges(path)) == []


def test_a_damaged_withdrawal_is_named(tmp_path):
    (tmp_path / "j").write_bytes(b'{"id":"1"}\n{"id":"1","withdrawn":7}\n')
    with pytest.raises(RunFolderError, match=r"/j:2: a damaged record"):
        withdrawals(tmp_path / "j")


def test_a_record_is_on_disk_when_append_returns_even_if_the_process_is_killed(
    tmp_path,
):
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


def test_a_full_device_stops_the_run_with_advice():
    if not Path("/dev/full").exists():
        pytest.skip("this system has no /dev/full")
    journal = Journal(Path("/dev/full"))
    with journal, pytest.raises(JournalError, match="No space left") as caught:
        journal.append(Record(id="1", response=ANSWER))
    assert "kept" in caught.value.hint


def test_a_file_size_limit_leaves_whole_records_only(tmp_path):
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


def test_stored_responses_are_the_first_that_count(tmp_path):
    def said(text):
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


def test_a_session_is_read_as_it_was_noted(tmp_path):
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


def test_what_this_version_does_not_know_stays_when_a_session_changes(tmp_path):
    noted = SessionFile(tmp_path)
    noted.note_session(SESSION)
    noted.note_endpoint(Endpoint(base_url="http://other/v1"))
    noted.note_session({"endpoint": ENDPOINT})
    assert noted.read() == read_sessions(tmp_path), "what is kept is what the file holds"
    first, second = read_sessions(tmp_path)
    assert first.stored["of a newer version"] == [1, {"b": None}]
    assert (first.endpoint.base_url, first.own, second.own) == ("http://other/v1", True, True)


def test_a_session_of_an_older_version_has_defaults_for_what_it_did_not_note(
    tmp_path,
):
    (tmp_path / "environment.json").write_text('[{"started_at": "2025-01-01T00:00:00+00:00"}]')
    [session] = read_sessions(tmp_path)
    assert (session.endpoint, session.limits, session.abilities, session.own) == (
        SessionRecord().endpoint,
        None,
        (),
        False,
    )


def test_an_endpoint_that_was_changed_by_hand_is_not_the_users_own(tmp_path):
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
def test_a_damaged_file_is_told(tmp_path, content):
    (tmp_path / "environment.json").write_text(content)
    with pytest.raises(RunFolderError, match=r"environment\.json cannot be read") as refused:
        read_sessions(tmp_path)
    assert refused.value.hint == "Delete it. It is only informative."


IN_PLACE = {
    "serve_eval/whole_file.py": {"os.open": 1, "open(wb)": 1, "ftruncate": 1},
    # Journals and logs only grow, and their readers skip an incomplete last line.
    "launchers/_kubernetes/watch.py": {"os.open": 1},
    "launchers/_process/server_process.py": {"os.open": 1},
    "serve_eval/storage/journal.py": {"os.open": 1, "ftruncate": 2},
    "serve_eval/storage/assessments.py": {"os.open": 1, "ftruncate": 1},
    "serve_eval/storage/answer_origins.py": {"os.open": 2},
    "serve_eval/storage/story_results.py": {"os.open": 1, "truncate": 1},
    "serve_eval/report/ci.py": {"open(ab)": 1},  # the summary of a job of GitHub
    "serve_eval/storage/sessions.py": {"os.open": 1},
    "serve_eval/workflows/servers/daemon.py": {"os.open": 1},  # the log of a new process
    "serve_eval/workflows/watch/record.py": {"os.open": 1, "open(r+b)": 1, "truncate": 1},
    # A lock holds the number of a process, which only messages show.
    "launchers/_machine/lock_files.py": {"os.open": 2, "truncate": 1},
    "serve_eval/storage/command_folder.py": {"os.open": 1},
    "serve_eval/workflows/servers/__init__.py": {"os.open": 1},
    # A file that must be new, or that gets its name, or that of its folder, when it is whole.
    "launchers/_fleet/fleet.py": {"os.open": 1},
    "launchers/_trtllm/version.py": {"NamedTemporaryFile": 1},
    "serve_eval/datasets/media.py": {"write_bytes": 1},
    "serve_eval/datasets/vault.py": {"open(wb)": 1},
    "serve_eval/storage/ownership.py": {"os.open": 1},
    # Stars replace a secret of the same length where a server may still append.
    "launchers/_trtllm/kv_transfer.py": {"open(r+b)": 1},
    "serve_eval/storage/server_logs.py": {"open(r+b)": 1},
    # What trtllm-serve writes, the stand-in writes as well.
    "launchers/_standin/metrics.py": {"open(a)": 1},
    "launchers/_standin/serving.py": {"open(a)": 1, "write_text": 1},
    # No file of a disk.
    "serve_eval/cli/runs_export.py": {"write_text": 1},  # returns the text of a table
    "serve_eval/cli/_progress.py": {"os.open": 1, "truncate": 1},
    "serve_eval/report/document/listing.py": {"truncate": 1},  # cuts a line of text
    "serve_eval/report/document/terminal.py": {"truncate": 2},  # the same
    "serve_eval/cli/_streams.py": {"os.open": 4},
    "serve_eval/processes/forkserver.py": {"os.open": 1, "write_text": 1},
    "serve_eval/processes/limited_start.py": {"write_text": 1},
    "serve_eval/workflows/suite/document.py": {"write_text": 1},  # returns the text of a table
}
"""The calls that may change a file in place, by file, each group with the reason why it may."""

CALLS = frozenset(
    ("write_text", "write_bytes", "truncate", "ftruncate", "copyfile", "copy", "copy2", "savefig")
) | {"NamedTemporaryFile", "tofile", "savetxt", "to_csv"}
"""Names of functions that write to the file that they are given."""


def test_no_file_that_may_exist_is_written_in_place_outside_the_helper():
    found = {}
    for package in ("serve_eval", "launchers"):
        for file in sorted((ROOT / package).rglob("*.py")):
            text = file.read_text()  # most files need no tree
            if not any(f"{name}(" in text for name in (*CALLS, "open")):
                continue
            if calls := Counter(_list_writes(ast.parse(text))):
                found[str(file.relative_to(ROOT))] = dict(calls)
    assert found == IN_PLACE, "write it with serve_eval/whole_file.py, or list it with the reason"


@pytest.mark.parametrize(
    ("code", "writes"),
    [
        ("path.open('w')", ["open(w)"]),
        ("open(path, mode='a+')", ["open(a+)"]),
        ("io.open(path, 'r+b')", ["open(r+b)"]),
        ("os.open(path, os.O_WRONLY | os.O_CREAT)", ["os.open"]),
        ("os.open(path, flags)", ["os.open"]),
        ("path.write_text(text)", ["write_text"]),
        ("path.open()", []),
        ("path.open('x')", []),
        ("os.open(path, os.O_RDONLY)", []),
        ("client.open(address)", []),
    ],
)
def test_the_walk_finds_what_writes(code, writes):
    assert list(_list_writes(ast.parse(code))) == writes


def _list_writes(tree):
    """Yield each call that may change a file in place. One that needs a new file does not."""
    for node in ast.walk(tree):
        if not isinstance(node, ast.Call):
            continue
        of = node.func
        name = of.attr if isinstance(of, ast.Attribute) else getattr(of, "id", "")
        owner = of.value.id if isinstance(of, ast.Attribute) and _is_name(of.value) else ""
        if name in CALLS and not (name == "copy" and owner != "shutil"):
            yield name
        elif (owner, name) == ("os", "open"):
            flags = {one.attr for one in ast.walk(node) if isinstance(one, ast.Attribute)}
            if "O_RDONLY" not in flags:
                yield "os.open"
        elif name == "open":
            given = [*node.args, *(one.value for one in node.keywords if one.arg == "mode")]
            modes = [str(one.value) for one in given if isinstance(one, ast.Constant)]
            yield from (
                f"open({mode})"
                for mode in modes
                if set(mode) <= set("rwax+bt") and set(mode) & set("wa+")
            )


def _is_name(node):
    return isinstance(node, ast.Name)


def test_a_failed_block_leaves_the_old_file_and_nothing_beside_it(tmp_path):
    file = tmp_path / "file"
    write_whole(file, b"old")
    with pytest.raises(ZeroDivisionError):
        _write_half(file)
    assert file.read_bytes() == b"old"
    assert [*tmp_path.iterdir()] == [file]


def _write_half(file):
    with replace_file(file) as out:
        out.write(b"%d" % (1 // 0))


def test_the_file_of_a_run_is_private_and_replaces_a_link(tmp_path):
    (tmp_path / "theirs").write_text("theirs")
    (tmp_path / "file").symlink_to("theirs")
    write_whole(tmp_path / "file", b"ours")
    assert (tmp_path / "theirs").read_text() == "theirs"
    assert stat.S_IMODE((tmp_path / "file").lstat().st_mode) == 0o600


def test_a_partial_file_that_is_a_link_is_not_followed(tmp_path):
    (tmp_path / "theirs").write_text("theirs")
    (tmp_path / "file.partial").symlink_to("theirs")
    with pytest.raises(OSError, match="symbolic links"):
        write_whole(tmp_path / "file", b"ours")
    assert (tmp_path / "theirs").read_text() == "theirs"


def test_a_file_that_a_person_named_keeps_its_link_and_permissions(tmp_path):
    real = tmp_path / "real"
    real.write_text("old")
    real.chmod(0o640)
    (tmp_path / "link").symlink_to("real")
    write_named_file(tmp_path / "link", b"new")
    assert (tmp_path / "link").is_symlink()
    assert real.read_bytes() == b"new"
    assert stat.S_IMODE(real.stat().st_mode) == 0o640


def test_standard_output_that_is_a_pipe_is_written_to():
    code = "import pathlib, serve_eval.whole_file as w;"
    code += "w.write_named_file(pathlib.Path('/dev/stdout'), b'said')"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, check=False)
    assert (done.returncode, done.stdout, done.stderr) == (0, b"said", b"")


def test_a_pipe_is_written_to(tmp_path):
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    reader = os.open(pipe, os.O_RDONLY | os.O_NONBLOCK)
    try:
        with replace_named_file(pipe) as out:
            out.write(b"said")
        assert os.read(reader, 10) == b"said"
    finally:
        os.close(reader)
    assert stat.S_ISFIFO(pipe.stat().st_mode)
