"""An entry is added to a file that people edit, and each other byte stays the same."""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from serve_eval import yaml_source
from serve_eval.errors import ReferenceFileError
from serve_eval.workflows.references import entries

ENTRY = {"quant_algo": "FP8", "accuracy": 87.1, "runs": {"values": [87.0, 87.2], "n": 2}}
LINES = """- quant_algo: FP8
  accuracy: 87.1
  runs:
    values:
      - 87.0
      - 87.2
    n: 2
"""

_TEXTS = st.text(st.characters(exclude_categories=["Cs"]), max_size=12) | st.sampled_from(
    [
        "yes",
        "1e5",
        "0o17",
        "2026-01-02",
        "- a",
        "a: b",
        "# no",
        "\n\n",
        "null",
        "12:30",
        "=",
        "<<",
        "'",
        '"',
        "\x85",
        "x" * 150,
    ]
)
_VALUES = st.recursive(
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats(allow_nan=False, allow_infinity=False)
    | _TEXTS,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(_TEXTS, inner, max_size=3),
    max_leaves=6,
)
_ENTRIES = st.dictionaries(_TEXTS, _VALUES, min_size=1, max_size=4)
_NOISE = st.sampled_from(["", "\n", "# a comment\n", "\n# one - two: 3\n\n"])
_ITEMS = st.sampled_from(
    [
        ("accuracy: 71.250  # by hand", "date: 2026-01-02"),
        ("{accuracy: 1, 'quant_algo': \"FP8\"}",),
        ("note: |", "  first: line", "", "  - second", "accuracy: 3"),
        ("accuracy: 2", "# within", "note: >-", "  folded", "  text"),
        ("note: 'a text", "  of two lines'", "empty:"),
        ("accuracy: 1", "more:", "- 1", "- {a: 2}", "- [3,", "   4]"),
    ]
)


@dataclass
class Layout:
    """A file in pieces, so that a test knows the place of each item."""

    pieces: list[str]
    items: list[tuple[int, str, int]]
    """For each item: the number of its piece, its model, and its place in the model's list."""

    @property
    def text(self) -> str:
        return "".join(self.pieces)


@st.composite
def _layouts(draw: st.DrawFn) -> Layout:
    pieces, items = [draw(_NOISE), draw(st.sampled_from(["", "---\n"]))], []
    for model in draw(
        st.lists(st.sampled_from(["a/b", '"c: d"', "'e'", "long name"]), unique=True, max_size=3)
    ):
        dash = " " * draw(st.sampled_from([0, 2, 5]))
        after = " " * draw(st.sampled_from([1, 3]))
        pieces.append(f"{model}:{draw(st.sampled_from(['', '   # first on purpose']))}\n")
        for index, lines in enumerate(draw(st.lists(_ITEMS, min_size=1, max_size=3))):
            pieces += [draw(_NOISE), f"{dash}-{after}"]
            inner = f"\n{dash} {after}"
            items.append(
                (len(pieces), yaml_source.parse(model, "", ReferenceFileError).value, index)
            )
            pieces += [
                inner.join(lines),
                draw(st.sampled_from(["\n", "  # at its end\n"])) if len(lines) < 5 else "\n",
            ]
    pieces += [draw(_NOISE), draw(st.sampled_from(["", "...\n", "...\n# behind\n"]))]
    if not items:
        pieces.insert(2, "{}\n")
    if draw(st.booleans()):
        pieces = [piece.replace("\n", "\r\n") for piece in pieces]
    if draw(st.booleans()):
        pieces[-1] = pieces[-1].rstrip("\r\n")
    return Layout(pieces, items)


def _read(text: str) -> Any:
    return yaml_source.parse(text, "f.yaml", ReferenceFileError).value


def _same(found: object, wanted: object) -> None:
    assert json.dumps(found) == json.dumps(wanted)


def _append(text: str, key: str = "m", entry: dict[str, Any] | None = None) -> str:
    return entries.append_entry(text, "f.yaml", key, entry or ENTRY, ReferenceFileError)


def _replace(text: str, key: str = "m", index: int = 0, entry: dict[str, Any] | None = None) -> str:
    return entries.replace_entry(text, "f.yaml", key, index, entry or ENTRY, ReferenceFileError)


@given(_layouts(), st.sampled_from(["a/b", "c: d", "e", "new one"]) | _TEXTS, _ENTRIES)
def test_what_is_appended_is_the_only_thing_that_comes_in(
    layout: Layout, key: str, entry: dict[str, Any]
) -> None:
    before = _read(layout.text)
    after = _append(layout.text, key, entry)
    _same(_read(after), {**before, key: [*before.get(key, []), entry]})
    old = layout.text.replace("{}\r\n", "").replace("{}\n", "") if not before else layout.text
    kept = next(i for i in range(len(old) + 1) if i == len(old) or after[i : i + 1] != old[i])
    assert after.endswith(old[kept:]), "the new text must begin and end with the old one"
    assert after.count("\r\n") == (after.count("\n") if "\r\n" in layout.text else 0)


@given(_layouts().filter(lambda layout: layout.items), st.data(), _ENTRIES)
def test_a_replaced_entry_leaves_all_around_it(
    layout: Layout, data: st.DataObject, entry: dict[str, Any]
) -> None:
    piece, model, index = data.draw(st.sampled_from(layout.items))
    before = _read(layout.text)
    after = _replace(layout.text, model, index, entry)
    _same(
        _read(after),
        {**before, model: [entry if i == index else old for i, old in enumerate(before[model])]},
    )
    assert after.startswith("".join(layout.pieces[:piece]))
    assert after.endswith("".join(layout.pieces[piece + 1 :]))


def test_an_entry_looks_as_a_person_would_write_it() -> None:
    two = LINES.replace("\n", "\n  ").rstrip(" ")
    assert _append("# ours\n{}\n") == f"# ours\nm:\n  {two}"
    assert _append("") == f"m:\n  {two}"
    assert (
        _append("m:\n  - accuracy: 1\n  # on it\n# on n\nn: []\n")
        == f"m:\n  - accuracy: 1\n  # on it\n  {two}# on n\nn: []\n"
    )
    assert _append("m: []  # none\nn: []\n") == f"m:\n  {two}  # none\nn: []\n"
    assert (
        _append("m:\n- accuracy: 1\n# on n\nn: []\n")
        == f"m:\n- accuracy: 1\n{LINES}# on n\nn: []\n"
    )
    assert _append("n: []") == f"n: []\nm:\n  {two}"
    assert _replace("m:\n- {accuracy: 1} # by hand\n") == f"m:\n{LINES.rstrip()} # by hand\n"
    assert (
        _append("", entry={"stop": ["\n\n"], "none": None})
        == 'm:\n  - stop:\n      - "\\n\\n"\n    none: null\n'
    )


def test_a_byte_order_mark_and_windows_line_ends_stay() -> None:
    text = "\ufeffm:\r\n  - accuracy: 1\r\n"
    assert _append(text, entry={"wer": 2}) == text + "  - wer: 2\r\n"
    assert _append("\ufeff", entry={"wer": 2}) == "\ufeffm:\n  - wer: 2\n"


@pytest.mark.parametrize(
    ("text", "said"),
    [
        (
            "# head\n{m: [{accuracy: 1}]}\n",
            "f.yaml:2: an entry of m cannot be added or replaced within brackets",
        ),
        (
            "m:\n  [{accuracy: 1}]\n",
            "f.yaml:2: an entry of m cannot be added or replaced within brackets",
        ),
        ("m: &x\n  - accuracy: 1\n", "f.yaml:1: anchors"),
        ("m:\n  accuracy: 1\n", "f.yaml:2: m must be a list of entries"),
        ("m:\n", "f.yaml:1: m must be a list of entries"),
        ("m: [\n", "f.yaml:2: "),
        ("- m\n", "f.yaml:1: must map names to lists"),
    ],
)
def test_a_style_that_is_not_edited_is_refused_with_its_line(text: str, said: str) -> None:
    for edit in (_append, _replace):
        with pytest.raises(ReferenceFileError) as raised:
            edit(text)
        assert str(raised.value).startswith(said)
        assert raised.value.hint


def test_an_edit_that_would_change_another_value_is_refused() -> None:
    for text in (
        "n:\n  - note: |\n      a line break behind it becomes part of this text",
        "m: !!seq\n  - accuracy: 1\n",
    ):
        with pytest.raises(
            ReferenceFileError, match="cannot be edited without changing other entries"
        ) as raised:
            _append(text)
        assert raised.value.hint.startswith("Nothing was written.")
