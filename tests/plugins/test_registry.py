from __future__ import annotations

import os
import re
from pathlib import Path
from typing import Literal

import pytest

from serve_eval.errors import PlanError
from serve_eval.plugins import extensions, registry
from serve_eval.protocol.shared import build_task
from serve_eval.schema import Spec


def _example(
    first: int,
    *,
    count: int = 3,
    share: float | None = None,
    kind: Literal["a", "b"] = "a",
    needed: str,
    names: list[str] = [],  # noqa: B006
) -> None:
    """Take some options."""


def test_names_are_the_files_without_an_underscore() -> None:
    assert {"gsm8k", "mmlu"} <= set(registry.names("serve_eval.tasks"))
    assert not [name for name in registry.names("serve_eval.tasks") if name.startswith("_")]


def test_files_that_come_and_go_are_noticed(tmp_path: Path) -> None:
    folder = "serve_eval.tasks"
    before = registry.list_shipped(folder)
    shipped = registry.places([folder])
    registry.look_in({folder: [*shipped[folder], str(tmp_path)]})
    try:
        assert registry.list_shipped(folder) == before
        new = tmp_path / "a_new_task.py"
        new.write_text("")
        os.utime(tmp_path, ns=(1, 1))  # the clock of a file system may be coarse
        assert set(registry.list_shipped(folder)) - set(before) == {"a_new_task"}
        new.unlink()
        os.utime(tmp_path, ns=(2, 2))
        assert registry.list_shipped(folder) == before
    finally:
        registry.look_in(shipped)


def test_an_unknown_name_comes_with_the_nearest() -> None:
    with pytest.raises(PlanError, match=r"unknown task .gsm8.\. Did you mean .gsm8k.\?"):
        registry.load("serve_eval.tasks", "gsm8")


def test_options_are_the_keyword_only_parameters() -> None:
    assert list(registry.options_of(_example)) == ["count", "share", "kind", "needed", "names"]


def test_options_are_converted_to_their_types() -> None:
    checked = registry.check_options(
        _example, {"needed": "x", "share": 1, "names": ["a"], "kind": "b"}, "t"
    )
    assert checked == {"needed": "x", "share": 1.0, "names": ["a"], "kind": "b"}
    assert isinstance(checked["share"], float)


def test_every_bad_option_is_reported() -> None:
    with pytest.raises(PlanError) as caught:
        registry.check_options(_example, {"count": "3", "kind": "c", "cuont": 1}, "tasks[0].x")
    assert len(caught.value.problems) == 4
    text = str(caught.value)
    assert "tasks[0].x.count: " in text
    assert "tasks[0].x.kind: " in text
    assert "tasks[0].x.cuont: unknown option. Did you mean 'count'?" in text
    assert "tasks[0].x.needed: required" in text


@pytest.mark.parametrize(
    ("value", "said"),
    [
        ("c", "Invalid enum value 'c'. Known: a, b."),
        ("bb", "Invalid enum value 'bb'. Did you mean 'b'?"),
    ],
)
def test_a_word_that_is_no_choice_comes_with_those_that_are(value: str, said: str) -> None:
    def either(*, kind: bool | Literal["a", "b"] | None = None) -> None:
        pass

    def plain(*, kind: Literal["a", "b"] = "a") -> None:
        pass

    for function in (either, plain):
        with pytest.raises(PlanError) as caught:
            registry.check_options(function, {"kind": value}, "t")
        assert caught.value.problems == [f"t.kind: {said}"]


@pytest.mark.parametrize(
    ("value", "taken"), [(500, "500"), ("500", "500"), (1.5, "1.5"), ("html", "html"), (None, None)]
)
def test_a_word_that_looks_like_a_number_may_be_written_as_one(
    value: object, taken: str | None
) -> None:
    def plain(*, kind: Literal["500", "1.5", "html"] | None = None) -> None:
        pass

    assert registry.check_options(plain, {"kind": value}, "t") == {"kind": taken}


@pytest.mark.parametrize("value", [501, 5.5, True, ["html"], {"html": 1}])
def test_a_value_that_is_no_word_comes_with_all_words_that_are(value: object) -> None:
    words = Literal["500", "a", "b", "c", "d", "e", "f", "g", "h", "i"]

    def plain(*, kind: words = "a") -> None:  # type: ignore[valid-type]
        pass

    plain.__annotations__["kind"] = words
    with pytest.raises(PlanError) as caught:
        registry.check_options(plain, {"kind": value}, "t")
    [problem] = caught.value.problems
    assert problem.startswith(f"t.kind: Expected one of its words, got {value!r}")
    assert "Did you mean '500'?" in problem or "Known: 500, a, b, c, d, e, f, g, h, i." in problem


def test_without_a_near_name_the_known_ones_are_listed() -> None:
    assert registry.nearest("zzz", ["alpha", "beta"]) == " Known: alpha, beta."
    assert registry.nearest("ALPHA", ["alpha", "beta"]) == " Did you mean 'alpha'?"
    assert registry.nearest("x", []) == ""
    assert registry.nearest("zzz", ["alpha", "beta", "alpha"]) == " Known: alpha, beta."


def test_an_option_before_the_star_is_named_with_what_to_write(tmp_path: Path) -> None:
    for kind in ("task", "scorer"):
        file = tmp_path / f"{kind}s/usual.py"
        file.parent.mkdir()
        file.write_text(f'"""Usual."""\n\n\ndef {kind}(count: int = 3):\n    return None\n')
    extensions.include([str(tmp_path)])
    for kind in ("task", "scorer"):
        with pytest.raises(PlanError) as caught:
            registry.load(f"serve_eval.{kind}s", "usual")
        assert str(caught.value) == (
            f"{tmp_path}/{kind}s/usual.py:4: count has a default, so it is an option, but only"
            " parameters behind `*` are options: write `*, count`"
        )


def test_a_defect_of_a_task_of_ours_is_named_with_its_line() -> None:
    load = build_task(Spec(name="gsm8k")).load
    with pytest.raises(AttributeError) as caught:
        load(None, 1)  # type: ignore[arg-type]
    assert re.match(
        r"This is a defect of serve-eval, at .*/serve_eval/tasks/\S+\.py:\d+\. Set",
        extensions.defect(caught.value),
    )
