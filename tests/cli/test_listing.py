from __future__ import annotations

import json
from pathlib import Path

import pytest

from serve_eval.plugins import registry
from serve_eval.report.document.listing import LINES
from serve_eval.verdicts.references import find_shipped_dir
from tests.cli.command import serve_eval

KINDS = ("tasks", "scorers", "launchers", "verdicts", "presets")


def _list(*arguments: str | Path, code: int = 0) -> str:
    done = serve_eval("data", "list", *arguments, COLUMNS="80")
    assert done.returncode == code, done.stderr
    return done.stdout


@pytest.mark.parametrize(
    "command",
    [
        *(("data", "list", kind) for kind in KINDS),
        ("data", "list", "datasets"),
    ],
)
def test_a_list_has_few_lines_and_all_of_it_in_other_forms(command: tuple[str, ...]) -> None:
    done = serve_eval(*command, COLUMNS="80")
    assert (done.returncode, len(done.stdout.splitlines()) <= LINES) == (0, True), done.stdout
    found = json.loads(serve_eval(*command, "--json").stdout)
    names = serve_eval(*command, "-q").stdout.splitlines()
    assert names == [one["name"] for one in found["entries"]]
    whole = serve_eval(*command, "-v", COLUMNS="80").stdout
    for one in found["entries"]:
        assert one["name"] in done.stdout
        assert f"\n  {one['name']}: " in whole
        assert all(line in whole for line in one["more"])
    assert "\x1b" not in whole


def test_the_list_of_all_kinds_counts_them_and_has_all_of_them_with_v() -> None:
    shown = _list()
    assert len(shown.splitlines()) <= LINES
    names = {one["name"]: one["text"].split(", ") for one in json.loads(_list("--json"))["entries"]}
    assert tuple(names) == KINDS
    whole = _list("-v")
    for kind in KINDS:
        assert f"{len(names[kind])} {kind}" in shown.splitlines()[0]
        assert _list(kind, "-v") in whole
    assert _list("-q").split() == list(KINDS)


def test_the_list_has_every_task() -> None:
    told = _list("tasks", "-v")
    assert all(f"\n  {name}:" in told for name in registry.names("serve_eval.tasks"))
    assert "\n  cases:NAME: " in told
    assert "options that every task has: " in told


def test_the_list_has_every_scorer_and_says_where_options_are() -> None:
    told = _list("scorers")
    assert all(f"\n  {name} " in told for name in registry.names(registry.SCORERS))
    assert "whole_words" not in told
    assert "\n  options of one: serve-eval data list scorers NAME\n" in told
    assert "whole_words" in _list("scorers", "words")
    [one] = json.loads(_list("scorers", "words", "--json"))["entries"]
    assert "whole_words" in "\n".join(one["more"])


def test_a_name_that_cannot_be_used_is_in_every_list(tmp_path: Path) -> None:
    (tmp_path / "scorers").mkdir()
    (tmp_path / "scorers/broken.py").write_text("raise OSError('no way')\n")
    for kind in ("all", "scorers"):
        told = _list(kind, "--include-path", tmp_path, code=2)
        assert "  broken" in told
        assert "no way" in told


def test_every_published_reference_has_a_task() -> None:
    files = {file.stem for file in find_shipped_dir().glob("*.yaml")}
    named = {"SlimPajama-6B", "acceptance_length", "gpqa_diamond"}  # their tasks have other names
    assert not files - named - set(registry.names("serve_eval.tasks"))
