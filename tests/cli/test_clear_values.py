"""Test that options mean what typer says, though most of them are converted without it."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Annotated, Any

import pytest
import typer
from hypothesis import example, given, settings
from hypothesis import strategies as st

from serve_eval.cli._help import HelpedCommand
from tests.cli.command import serve_eval

KINDS = [int, float, str, Path, bool]
TEXTS = [
    *("7", "-7", "+7", "007", " 7 ", "7_000", "7.0", "7.", ".7", "-7.25", "1e3", "0x7", "٣"),
    *("", " ", "-", "--", "nan", "inf", "None", "true", "no", "9" * 15, "9" * 16, "9" * 400),
    *("0.1", "0.30000000000000004", "1.0000000000000001", "7,5", "7\n", "ü", "a b", "/", "absent"),
]


def _read(cls: Any, kind: Any, *texts: str, **how: Any) -> tuple[str, Any]:
    """Return the value that a command of this class gets, or the error and its message."""
    got: list[Any] = []
    default = how.pop("default", None)

    def take(value: Any = default) -> None:
        got.append(value)

    take.__annotations__ = {"value": Annotated[kind, typer.Option("--value", **how)]}
    app = typer.Typer(add_completion=False)
    app.command(cls=cls)(take)
    arguments = [f"--value={text}" for text in texts]
    try:
        typer.main.get_command(app).main(arguments, standalone_mode=False)
    except Exception as error:
        return type(error).__name__, getattr(error, "message", str(error))
    [value] = got
    inner = [type(one) for one in value] if isinstance(value, list) else None
    return f"{type(value)} {inner}", repr(value)


def _same(kind: Any, *texts: str, **how: Any) -> None:
    typers = _read(typer.core.TyperCommand, kind, *texts, **how)
    ours = _read(HelpedCommand, kind, *texts, **how)
    numbers = ("valid integer", "valid number")
    if ours != typers and any(told in str(typers[1]) for told in numbers):
        word = "a whole number" if "integer" in typers[1] else "a number"
        typers = typers[0], f"expected {word}, not "
        ours = ours[0], ours[1][: len(typers[1])]
    assert ours == typers


@pytest.mark.parametrize("kind", KINDS)
def test_every_spelling_means_the_same_or_ends_in_the_same_error(kind: Any) -> None:
    for text in TEXTS:
        _same(kind, text)
        _same(kind | None, text)
        if kind is not bool:
            _same(list[kind], text, "7", text)


@settings(max_examples=50)
@given(st.text(st.characters(codec="utf-8", exclude_characters="\0"), max_size=12))
@example("9007199254740993")
def test_whatever_is_written_means_the_same(text: str) -> None:
    for kind in (int, float, str, Path):
        _same(kind, text)


@settings(max_examples=50)
@given(st.floats() | st.integers(-(10**20), 10**20) | st.decimals(places=6, allow_nan=False))
def test_numbers_are_the_same_to_the_last_bit(number: object) -> None:
    _same(int, str(number))
    _same(float, str(number))


@pytest.mark.parametrize(
    ("kind", "how"),
    [
        (int, {"min": 1}),
        (int, {"max": 3, "clamp": True}),
        (float, {"min": 0.5, "max": 8}),
        (int, {"parser": lambda text: int(text) + 1}),
        (Path, {"exists": True}),
        (Path, {"dir_okay": False}),
        (Path, {"file_okay": False}),
        (Path, {"resolve_path": True}),
        (int, {"default": 3}),
        (float, {"default": 3}),
        (int, {"default": "3"}),
        (str, {"default": 3}),
        (Path, {"default": "here"}),
        (list[int], {"default": (3, 4)}),
    ],
)
def test_limits_parsers_and_defaults_keep_their_meaning(kind: Any, how: dict[str, Any]) -> None:
    for texts in ([], ["0"], ["2"], ["9"], ["/"], [__file__], ["absent"]):
        _same(kind, *texts, **dict(how))


@pytest.mark.skipif(os.getuid() == 0, reason="root may read every file")
def test_an_unreadable_file_is_typers_error(tmp_path: Path) -> None:
    (tmp_path / "closed").touch(mode=0)
    _same(Path, str(tmp_path / "closed"))


def test_a_variable_means_what_its_flag_means() -> None:
    flag = serve_eval("run", "--limit", "many")
    variable = serve_eval("run", SERVE_EVAL_LIMIT="many")
    assert flag.returncode == variable.returncode == 2
    for said in (flag, variable):
        assert "expected a whole number, not 'many'" in said.stderr
