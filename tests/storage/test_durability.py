"""Check that records are forced to disk, whole, before anything reports that they exist."""

import errno
import os
from pathlib import Path

import pytest

from serve_eval.errors import JournalError, RunFolderError
from serve_eval.schema import Response
from serve_eval.storage.answer_origins import ConnectionStep, Proofs
from serve_eval.storage.file_names import PROOFS_FILE
from serve_eval.storage.journal import NO_ROOM_HINT, Journal, Record
from serve_eval.storage.json_files import write_private
from serve_eval.workflows.watch import record as canary

pytestmark = pytest.mark.skipif(
    not Path("/proc/self/fd").is_dir(), reason="this system does not say which file is open"
)

ANSWER = Response(text="#### 7", finish_reason="stop")


class Disk:
    """Notes the content of each file that is forced to disk.

    Fails with `error` if one is given.
    """

    def __init__(self, monkeypatch):
        self.forced = []
        self.error = None
        monkeypatch.setattr(os, "fsync", self._fsync)

    def _fsync(self, fd):
        path = Path(f"/proc/self/fd/{fd}").readlink()
        self.forced.append((path.name, path.read_bytes()))
        if self.error is not None:
            raise OSError(self.error, os.strerror(self.error))


@pytest.fixture
def disk(monkeypatch):
    return Disk(monkeypatch)


def test_a_file_is_forced_to_the_disk_before_it_takes_its_name(disk, tmp_path):
    (tmp_path / "plan.json").write_bytes(b"old")
    write_private(tmp_path / "plan.json", b"new and whole")
    assert disk.forced == [("plan.json.partial", b"new and whole")]
    assert (tmp_path / "plan.json").read_bytes() == b"new and whole"


@pytest.mark.parametrize(
    ("number", "kind"), [(errno.ENOSPC, JournalError), (errno.EIO, RunFolderError)]
)
def test_a_file_that_cannot_be_forced_leaves_the_old_one(disk, tmp_path, number, kind):
    (tmp_path / "plan.json").write_bytes(b"old")
    disk.error = number
    with pytest.raises(kind, match="cannot write"):
        write_private(tmp_path / "plan.json", b"new")
    assert (tmp_path / "plan.json").read_bytes() == b"old"


def test_a_round_is_forced_to_the_disk_whole(disk, tmp_path):
    for number in (1, 2):
        seen = canary.Seen(
            round=number,
            started_at="2026-01-01T00:00:00Z",
            seconds=1.0,
            asked=[0],
            values=[1.0],
            usable="1",
            prompt_tokens=[3],
            failures={},
        )
        canary.append(tmp_path, seen)
    whole = (tmp_path / canary.ROUNDS_FILE).read_bytes()
    assert [content for _, content in disk.forced] == [whole[: len(whole) // 2], whole]


def test_a_connection_out_of_step_is_forced_to_the_disk_when_it_is_found(disk, tmp_path):
    """A crash that lost it would let foreign answers stand; a lost proof costs a request."""
    file = tmp_path / PROOFS_FILE
    proofs = Proofs(file)
    proofs.note(ConnectionStep("s", 1, turns=8))
    assert disk.forced == []
    proofs.note(ConnectionStep("s", 2, out="an unasked answer"))
    assert disk.forced == [(PROOFS_FILE, file.read_bytes())]
    assert Proofs(file).out == 1


def test_a_journal_is_forced_to_the_disk_when_there_is_something_new(disk, tmp_path):
    with Journal(tmp_path / "j") as journal:
        journal.sync()
        assert disk.forced == []
        journal.append(Record(id="1", response=ANSWER))
        journal.sync()
        journal.sync()
        assert [content for _, content in disk.forced] == [(tmp_path / "j").read_bytes()]
        journal.append(Record(id="2", response=ANSWER))
    assert [content for _, content in disk.forced[1:]] == [(tmp_path / "j").read_bytes()]


def test_a_closed_journal_gives_its_descriptor_back(tmp_path):
    def opened():
        return len(list(Path("/proc/self/fd").iterdir()))

    before = opened()
    with Journal(tmp_path / "j"):
        assert opened() == before + 1
    assert opened() == before


@pytest.mark.parametrize("number", [errno.EINVAL, errno.ENOSYS, errno.EOPNOTSUPP])
def test_a_file_system_that_cannot_sync_is_left_to_itself(disk, tmp_path, number):
    disk.error = number
    with Journal(tmp_path / "j") as journal:
        journal.append(Record(id="1", response=ANSWER))
        journal.sync()
        journal.sync()
        assert len(disk.forced) == 1, "nothing new is there to be forced"


@pytest.mark.parametrize("number", [errno.ENOSPC, errno.EIO])
def test_a_disk_that_fails_stops_the_journal_with_advice(disk, tmp_path, number):
    with Journal(tmp_path / "j") as journal:
        journal.append(Record(id="1", response=ANSWER))
        disk.error = number
        with pytest.raises(JournalError, match="j: cannot write: ") as caught:
            journal.sync()
        assert caught.value.hint == NO_ROOM_HINT
        disk.error = None
        journal.sync()
    assert len(disk.forced) == 3, "one failure, one retry, one at the end"


class HalfWritten:
    """Writes the first half of a record, then the disk is full."""

    def __init__(self, monkeypatch, then=b""):
        self._write, self._then, self._calls = os.write, then, 0
        monkeypatch.setattr("serve_eval.storage.journal.os.write", self)

    def __call__(self, fd, data):
        self._calls += 1
        if self._calls % 2 == 0:
            self._write(fd, self._then)
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        return self._write(fd, data[: len(data) // 2])


def test_a_record_that_does_not_fit_leaves_nothing_torn(monkeypatch, tmp_path):
    with Journal(tmp_path / "j") as journal:
        for name in "12":
            journal.append(Record(id=name, response=ANSWER))
        whole = (tmp_path / "j").read_bytes()
        with monkeypatch.context() as patch:
            HalfWritten(patch)
            for _ in range(2):
                with pytest.raises(JournalError, match=r"j: cannot write: No space left") as caught:
                    journal.append(Record(id="3", response=ANSWER))
                assert caught.value.hint == NO_ROOM_HINT
                assert (tmp_path / "j").read_bytes() == whole
        journal.append(Record(id="4", response=ANSWER))
        assert [record.id for record in journal.records()] == ["1", "2", "4"]


def test_what_another_process_wrote_behind_a_torn_record_stays(monkeypatch, tmp_path):
    with Journal(tmp_path / "j") as journal:
        journal.append(Record(id="1", response=ANSWER))
        with monkeypatch.context() as patch:
            HalfWritten(patch, then=b"of another\n")
            with pytest.raises(JournalError):
                journal.append(Record(id="2", response=ANSWER))
    assert (tmp_path / "j").read_bytes().endswith(b"of another\n")


def test_a_damaged_line_says_what_to_do(tmp_path):
    (tmp_path / "j").write_bytes(b"{\n")
    with Journal(tmp_path / "j") as journal, pytest.raises(RunFolderError) as caught:
        list(journal.records())
    assert caught.value.hint == "Delete that line: its sample is then asked again."


@pytest.mark.parametrize("torn", [1, (1 << 16) - 1, 1 << 16, (1 << 16) + 1, 200_000])
def test_a_torn_line_of_any_length_is_dropped(tmp_path, torn):
    with Journal(tmp_path / "j") as journal:
        journal.append(Record(id="1", response=ANSWER))
    whole = (tmp_path / "j").read_bytes()
    (tmp_path / "j").write_bytes(whole + b"x" * torn)
    with Journal(tmp_path / "j") as journal:
        assert (journal.dropped_bytes, journal.empty) == (torn, False)
    assert (tmp_path / "j").read_bytes() == whole
    (tmp_path / "j").write_bytes(b"x" * torn)
    with Journal(tmp_path / "j") as journal:
        assert (journal.dropped_bytes, journal.empty) == (torn, True)
