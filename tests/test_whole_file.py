"""Files that exist are replaced whole: the helper, and a walk through all code for other writes."""

from __future__ import annotations

import ast
import os
import stat
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest

from serve_eval.whole_file import replace_file, replace_named_file, write_named_file, write_whole

ROOT = Path(__file__).resolve().parents[1]

IN_PLACE = {
    "serve_eval/whole_file.py": {"os.open": 1, "open(wb)": 1},
    # Journals and logs only grow, and their readers skip an incomplete last line.
    "launchers/_kubernetes/logs.py": {"os.open": 1},
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
    "serve_eval/file_system.py": {"ftruncate": 1},
    "serve_eval/workflows/servers/held_servers.py": {"os.open": 1},
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


def test_no_file_that_may_exist_is_written_in_place_outside_the_helper() -> None:
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
def test_the_walk_finds_what_writes(code: str, writes: list[str]) -> None:
    assert list(_list_writes(ast.parse(code))) == writes


def _list_writes(tree: ast.AST) -> Iterator[str]:
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


def _is_name(node: ast.expr) -> bool:
    return isinstance(node, ast.Name)


def test_a_failed_block_leaves_the_old_file_and_nothing_beside_it(tmp_path: Path) -> None:
    file = tmp_path / "file"
    write_whole(file, b"old")
    with pytest.raises(ZeroDivisionError):
        _write_half(file)
    assert file.read_bytes() == b"old"
    assert [*tmp_path.iterdir()] == [file]


def _write_half(file: Path) -> None:
    with replace_file(file) as out:
        out.write(b"%d" % (1 // 0))


def test_the_file_of_a_run_is_private_and_replaces_a_link(tmp_path: Path) -> None:
    (tmp_path / "theirs").write_text("theirs")
    (tmp_path / "file").symlink_to("theirs")
    write_whole(tmp_path / "file", b"ours")
    assert (tmp_path / "theirs").read_text() == "theirs"
    assert stat.S_IMODE((tmp_path / "file").lstat().st_mode) == 0o600


def test_a_partial_file_that_is_a_link_is_not_followed(tmp_path: Path) -> None:
    (tmp_path / "theirs").write_text("theirs")
    (tmp_path / "file.partial").symlink_to("theirs")
    with pytest.raises(OSError, match="symbolic links"):
        write_whole(tmp_path / "file", b"ours")
    assert (tmp_path / "theirs").read_text() == "theirs"


def test_a_file_that_a_person_named_keeps_its_link_and_permissions(tmp_path: Path) -> None:
    real = tmp_path / "real"
    real.write_text("old")
    real.chmod(0o640)
    (tmp_path / "link").symlink_to("real")
    write_named_file(tmp_path / "link", b"new")
    assert (tmp_path / "link").is_symlink()
    assert real.read_bytes() == b"new"
    assert stat.S_IMODE(real.stat().st_mode) == 0o640


def test_standard_output_that_is_a_pipe_is_written_to() -> None:
    code = "import pathlib, serve_eval.whole_file as w;"
    code += "w.write_named_file(pathlib.Path('/dev/stdout'), b'said')"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, check=False)
    assert (done.returncode, done.stdout, done.stderr) == (0, b"said", b"")


def test_a_pipe_is_written_to(tmp_path: Path) -> None:
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
