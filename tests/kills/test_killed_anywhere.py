"""Any command killed before any change of its folder goes on, or begins anew, when given again.

The child is killed by SIGKILL before the n-th file is opened for writing, made, renamed or removed,
for n from 1 on, so that no moment is left out by chance. The slow tests try every moment of every
command; the others try those of the commands that fill a folder with what other folders hold.
"""

from __future__ import annotations

import shutil
from dataclasses import dataclass
from pathlib import Path

import pytest

from serve_eval.launchers._simulated.config import SimulatorConfig
from serve_eval.launchers._simulated.simulator import create_app
from serve_eval.whole_file import PARTIAL
from tests.kills.forks import Forks
from tests.scripted_server import serve_in_thread

ASKED = ["-t", "passkey_short", "--limit", "4", "--model", "m"]
WRITTEN = {
    "merge": ["runs", "merge", "s1", "s2", "-o", "out"],
    "rescore": ["judge", "--rescore", "r", "-o", "out"],
    "capsule": ["show", "r", "27", "60", "--capsule", "-o", "out"],
    "export": ["runs", "export", "r", "-o", "out"],
    "canaries": [
        "check",
        "invariants",
        "URL",
        "--canaries",
        "--limit",
        "4",
        "--model",
        "m",
        "-o",
        "out",
    ],
}
ASKING = {
    "run": ["run", "--base-url", "URL", *ASKED, "--no-reference", "-o", "out"],
    "compare": ["compare", "URL", "OTHER", *ASKED, "-o", "out"],
    "load": [
        "check",
        "load",
        "URL",
        *ASKED,
        "--concurrency",
        "1,2",
        "--set",
        "limits.order_seed=1",
        "-o",
        "out",
    ],
    "invariants": ["check", "invariants", "URL", *ASKED, "-o", "out"],
    "suite": ["run", "suite.yaml", "-o", "out"],
    "tools": [
        *("check", "tools", "URL", "--model", "m", "--limit", "2", "--concurrency", "1"),
        *("--set", "tools.kinds=auto", "-o", "out"),
    ],
    "take": [
        *("references", "take", "--runs", "1", "URL", "-t", "passkey_short", "--model", "m"),
        *("--references-dir", "refs", "-o", "out"),
    ],
}
"""The commands by name; URL and OTHER stand for two endpoints, and out/ is what they write."""
LEFT = ("steps.jsonl", PARTIAL)
"""Endings of what only killed runs have: the unproven answers, and a file that was half written."""


@dataclass(frozen=True, slots=True)
class Killed:
    """A folder with finished runs and shards, in which commands write `out`."""

    forks: Forks
    folder: Path
    urls: dict[str, str]

    def give(self, command, *, kill_at=0, out="out"):
        """Give a command, killed before the change of that number (0: never)."""
        words = [self.urls.get(word, word) for word in command]
        return self.forks.run(words, self.folder / out, self.folder, kill_at=kill_at)

    def clear(self):
        """Remove what commands wrote."""
        for name in ("out", "refs"):
            shutil.rmtree(self.folder / name, ignore_errors=True)

    def list_files(self):
        """Return the files in the folder, without logs, leftovers and what names kills."""
        out = self.folder / "out"
        found = {str(file.relative_to(out)) for file in out.rglob("*") if file.is_file()}
        return {name for name in found if not name.endswith(LEFT) and "logs/" not in name}


@pytest.fixture(scope="module")
def killed(tmp_path_factory):
    folder = tmp_path_factory.mktemp("kills")
    app = create_app(SimulatorConfig(model="m"))
    other = create_app(SimulatorConfig(model="m"))
    with (
        serve_in_thread(app) as url,
        serve_in_thread(other) as second,
        Forks(folder / "log") as forks,
    ):
        found = Killed(forks, folder, {"URL": url, "OTHER": second})
        (folder / "suite.yaml").write_text(
            f"name: s\nplans:\n  - {{base_url: '{url}', model: m, limit: 4, name: a,"
            " tasks: [passkey_short], no_reference: true}\n"
        )
        run = ["run", "--base-url", "URL", *ASKED, "--no-reference"]
        for name, more in (("s1", ["--shard", "1/2"]), ("s2", ["--shard", "2/2"]), ("r", [])):
            ended = found.give([*run, *more, "-o", name], out=name)
            assert ended.code in (0, 3), ended.text
        yield found


def _kill_at_each(killed, command, step=1):
    killed.clear()
    whole = killed.give(command)
    files = killed.list_files()
    assert whole.code in (0, 3), whole.text
    assert whole.changes > 3
    for moment in range(1, whole.changes + 1, step):
        killed.clear()
        ended = killed.give(command, kill_at=moment)
        again = killed.give(command)
        assert (ended.code, again.code) == (-9, whole.code), f"{moment}: {again.text}"
        assert killed.list_files() == files, moment


@pytest.mark.parametrize("name", WRITTEN)
def test_what_is_copied_begins_anew_after_a_kill_at_any_moment(killed, name):
    _kill_at_each(killed, WRITTEN[name], step=11)


@pytest.mark.parametrize("name", ["tools", "take"])
def test_a_check_goes_on_after_a_kill_in_its_first_second(killed, name):
    killed.clear()
    whole = killed.give(ASKING[name]).code
    for moment in (3, 5):
        killed.clear()
        assert killed.give(ASKING[name], kill_at=moment).code == -9
        again = killed.give(ASKING[name])
        assert again.code == whole, f"{moment}: {again.text}"


@pytest.mark.slow
@pytest.mark.parametrize("name", ASKING)
def test_what_is_asked_goes_on_after_a_kill_at_any_moment(killed, name):
    _kill_at_each(killed, ASKING[name], step=9)


@pytest.mark.slow
@pytest.mark.parametrize("name", WRITTEN)
def test_what_is_copied_begins_anew_after_every_kill(killed, name):
    _kill_at_each(killed, WRITTEN[name])


@pytest.mark.parametrize("name", ["merge", "rescore", "tools", "run", "take"])
@pytest.mark.parametrize("foreign", ["notes.txt", "lock", "copying.json"])
def test_a_foreign_folder_is_refused(killed, name, foreign):
    killed.clear()
    (killed.folder / "out").mkdir()
    (killed.folder / "out" / foreign).write_text("not ours")
    (killed.folder / "out/mine.txt").write_text("not ours either")
    ended = killed.give({**WRITTEN, **ASKING}[name])
    assert ended.code == 2, ended.text
    assert (killed.folder / "out/mine.txt").read_text() == "not ours either"


def test_a_finished_merge_of_others_and_what_was_asked_since_are_kept(killed):
    killed.clear()
    merged = killed.give(WRITTEN["merge"])
    assert killed.give(WRITTEN["merge"]).code == merged.code
    other = killed.give(WRITTEN["rescore"])
    assert (other.code, "not an empty folder" in other.text) == (2, True), other.text
    asked = killed.give(["run", "--resume", "out"])
    assert asked.code == merged.code, asked.text
    refused = killed.give(WRITTEN["merge"])
    assert (refused.code, "not an empty folder" in refused.text) == (2, True), refused.text


def test_an_unfinished_merge_is_not_continued_by_asking(killed):
    killed.clear()
    assert killed.give(WRITTEN["merge"], kill_at=40).code == -9
    asked = killed.give(["run", "--resume", "out"])
    assert (asked.code, "unfinished copy" in asked.text) == (2, True), asked.text
