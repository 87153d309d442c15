"""Test that files of a newer serve-eval are refused, whatever the command.

The error names the version. The files of a run and of a suite have readers of their own.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from serve_eval.errors import RunFolderError
from serve_eval.storage.reports import story_results
from serve_eval.storage.story_files import (
    ATTRIBUTE,
    COMPARE,
    INVARIANTS,
    RUN,
    STORIES,
    SUITE,
    TOOLS,
    StoryFiles,
    find_maker,
)

Read = Callable[[Path], object]
CONTENT = dict[str, Any]
SIDES = {"a": {"run": "/one"}, "b": {"launcher": {"name": "simulated"}}}


def _list_readers() -> list[tuple[str, StoryFiles, Read, bool]]:
    """Return the file, the story, a reader, and whether it takes a damaged file for a missing one.

    Fails if a story of the table cannot be read by its declaration.
    """
    found = list[tuple[str, StoryFiles, Read, bool]]()
    for one in (one for one in STORIES if one not in (RUN, SUITE)):
        if one.plan:
            found += [(one.plan, one, partial(one.find_plan, of=CONTENT), False)]
            found += [(one.plan, one, one.find_plan_content, False)]
        if one.result:
            found += [(one.result, one, partial(one.find, of=CONTENT), True)]
            found += [(one.result, one, partial(one.read, of=CONTENT), False)]
    found += [("compare.json", COMPARE, story_results.locate_runs, False)]
    found += [("attribution.json", ATTRIBUTE, story_results.check_attribution, True)]
    return found


READERS = _list_readers()


@pytest.mark.parametrize("more", [SIDES, {"all": "else"}], ids=["alike", "of other fields"])
@pytest.mark.parametrize(("name", "story", "read", "lenient"), READERS)
def test_a_newer_file_is_refused(
    name: str, story: StoryFiles, read: Read, lenient: bool, more: dict[str, Any], tmp_path: Path
) -> None:
    text = json.dumps({"schema_version": story.version + 4, **more})
    (tmp_path / name).write_text(text)
    said = (
        f"{re.escape(str(tmp_path / name))} has format {story.version + 4}, but .* reads formats"
        f" up to {story.version}$"
    )
    with pytest.raises(RunFolderError, match=said) as caught:
        read(tmp_path)
    assert "or a newer one" in caught.value.hint
    assert (tmp_path / name).read_text() == text


def test_a_command_reads_what_it_writes_and_drops_it(tmp_path: Path) -> None:
    COMPARE.write_plan(tmp_path, SIDES)
    stored = json.loads((tmp_path / "compare.json").read_text())
    assert stored == {"schema_version": COMPARE.version, **SIDES}
    assert COMPARE.find_plan_content(tmp_path) == SIDES
    assert story_results.locate_runs(tmp_path) == [("A", Path("/one")), ("B", tmp_path / "b")]
    TOOLS.write(tmp_path, {"cells": [1]})
    (tmp_path / "report.html").write_text("the page")
    assert TOOLS.find(tmp_path, CONTENT) == {"cells": [1]}
    TOOLS.drop(tmp_path)
    assert sorted(one.name for one in tmp_path.iterdir()) == ["compare.json"]
    assert TOOLS.find(tmp_path, CONTENT) is TOOLS.read(tmp_path, CONTENT) is None


def test_a_file_without_a_version_is_of_the_first(tmp_path: Path) -> None:
    (tmp_path / "compare.json").write_text(json.dumps(SIDES))
    assert COMPARE.find_plan_content(tmp_path) == SIDES
    assert len(story_results.locate_runs(tmp_path)) == 2


@pytest.mark.parametrize("content", ["{", '{"schema_version": "five"}', "[]"])
@pytest.mark.parametrize(("name", "story", "read", "lenient"), READERS)
def test_a_damaged_file_is_named(
    name: str, story: StoryFiles, read: Read, lenient: bool, content: str, tmp_path: Path
) -> None:
    (tmp_path / name).write_text(content)
    if lenient:
        assert read(tmp_path) is None
        return
    with pytest.raises(RunFolderError, match="cannot be read"):
        read(tmp_path)


@pytest.mark.parametrize(
    ("plan", "place", "maker"),
    [
        ("compare.json", "a", "compare"),
        ("compare.json", "again_b", "compare"),
        ("compare.json", "c", ""),
        ("references.json", "run_2", "references take"),
        ("load_plan.json", "64_again", "load"),
        ("tools_plan.json", "stream_8", "tools"),
        (INVARIANTS.plan, "cold", "invariants"),
        ("bisect.json", "runs/00", "bisect"),
        ("bisect.json", "00", ""),
        ("suite.json", "runs/00", ""),
    ],
)
def test_a_run_is_known_as_a_part_of_what_asked_it(
    plan: str, place: str, maker: str, tmp_path: Path
) -> None:
    (tmp_path / "out" / place).mkdir(parents=True)
    (tmp_path / "out" / plan).write_text("{}")
    assert find_maker(tmp_path / "out" / place) == maker
