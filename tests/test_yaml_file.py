from __future__ import annotations

from pathlib import Path

import pytest

from serve_eval import yaml_file
from serve_eval.errors import PlanError, ReferenceFileError

TEXT = """\
# head
model:
  - accuracy: 1
  - {dtype: auto,
     accuracy: 2.5}
"other": []
date: 2026-01-31
"""


def _parse(text: str) -> yaml_file.Document:
    return yaml_file.parse(text, "f.yaml", ReferenceFileError)


def test_plain_values_come_out_as_yaml_says() -> None:
    document = _parse(TEXT)
    assert document.value == {
        "model": [{"accuracy": 1}, {"dtype": "auto", "accuracy": 2.5}],
        "other": [],
        "date": "2026-01-31",
    }
    assert document.name == "f.yaml"


@pytest.mark.parametrize(
    ("keys", "line"),
    [
        ((), 2),
        (("model",), 2),
        (("model", 0), 3),
        (("model", 0, "accuracy"), 3),
        (("model", 1), 4),
        (("model", 1, "accuracy"), 5),
        (("model", 1, "accuracy", "deeper"), 5),
        (("model", 1, "missing"), 4),
        (("other",), 6),
        (("nowhere", 7), 2),
    ],
)
def test_a_path_has_the_line_of_its_key_or_of_its_nearest_parent(keys: tuple[object, ...], line: int) -> None:
    assert _parse(TEXT).line(*keys) == line


def test_a_time_stays_as_it_is_written() -> None:
    assert _parse("a: 2026-01-31 10:20:30\n").value == {"a": "2026-01-31 10:20:30"}


def test_numbers_that_read_as_they_are_written_are_numbers() -> None:
    assert _parse("[0, 00, 0.5, -0.25, 0x1F, 1_000, 089, 6.02e+23]").value == [
        0, 0, 0.5, -0.25, 31, 1000, "089", 6.02e23,
    ]  # fmt: skip


def test_keys_may_be_the_texts_that_they_are_written_as() -> None:
    document = yaml_file.parse("1: a\nyes: {010: b, ~: c}\n", "f.yaml", PlanError, text_keys=True)
    assert document.value == {"1": "a", "yes": {"010": "b", "~": "c"}}
    assert document.line("yes", "010") == 2


@pytest.mark.parametrize("text", ["", "# only a comment\n"])
def test_an_empty_file_holds_none(text: str) -> None:
    document = _parse(text)
    assert document.value is None
    assert document.line("x") == 1


@pytest.mark.parametrize(
    ("text", "where", "what"),
    [
        ("a: 1\nb: 2\na: 3\n", "f.yaml:3:", "'a' is repeated; it stands first on line 1"),
        ("x:\n  a: 1\n  a: 1\n", "f.yaml:3:", "'a' is repeated"),
        ("1: x\n1.0: y\n", "f.yaml:2:", "is repeated"),
        ("a: &x 1\nb: *x\n", "f.yaml:1:", "anchors"),
        ("a: 1\nb: *x\n", "f.yaml:2:", "aliases"),
        ("a:\n  <<: {b: 1}\n", "f.yaml:2:", "merge keys"),
        ("a: !!python/object/apply:os.system [ls]\n", "f.yaml:1:", "tag"),
        ("a: !!python/name:os.system\n", "f.yaml:1:", "tag"),
        ("a: 1\nb: !mine x\n", "f.yaml:2:", "tag"),
        ("a: !!set {x, y}\n", "f.yaml:1:", "tag"),
        ("a: !!binary aGk=\n", "f.yaml:1:", "tag"),
        ("a: 1\nb: !!int many\n", "f.yaml:2:", "'many' is not a valid value"),
        ("a: !!timestamp never\n", "f.yaml:1:", "not a valid value"),
        ("a: !!bool perhaps\n", "f.yaml:1:", "not a valid value"),
        ("a: 2026-13-45\n", "f.yaml:1:", "not a valid value"),
        ("a: 1\nb: 12:30\n", "f.yaml:2:", "to the base 60, and YAML reads 12:30 as 750"),
        ("a: 190:20:30.15\n", "f.yaml:1:", "to the base 60"),
        ("a: 010\n", "f.yaml:1:", "a number that begins with 0 is octal, and YAML reads 010 as 8"),
        ('a: 1\nb: "x\\ud800"\n', "f.yaml:2:", "half of a surrogate pair"),
        ("a: 1\n\n? [x, y]\n: 2\n", "f.yaml:3:", "a plain value was expected"),
        ("a: 1\n  b: 2\n", "f.yaml:2:", "mapping values are not allowed"),
        ("a: [1, 2\n", "f.yaml:2:", "flow sequence"),
        ("a: 1\n---\nb: 2\n", "f.yaml:2:", "single document"),
        ("a: 1\nb: \x07\n", "f.yaml:2:", "control character"),
    ],
)
def test_what_is_not_plain_yaml_is_refused_with_its_line_and_a_hint(text: str, where: str, what: str) -> None:
    with pytest.raises(ReferenceFileError) as caught:
        _parse(text)
    assert str(caught.value).startswith(where)
    assert what in str(caught.value)
    assert caught.value.hint


def test_a_file_of_aliases_within_aliases_is_refused_at_once() -> None:
    bomb = "a0: &a0 [x, x]\n" + "".join(f"a{n}: &a{n} [*a{n - 1}, *a{n - 1}]\n" for n in range(1, 60))
    with pytest.raises(ReferenceFileError, match=r"f\.yaml:1: anchors"):
        _parse(bomb)


def test_very_deep_nesting_is_an_error_and_not_a_crash() -> None:
    with pytest.raises(ReferenceFileError, match="nested too deeply"):
        _parse("[" * 5000)


def test_the_given_error_is_raised() -> None:
    with pytest.raises(PlanError, match=r"plan\.yaml:1"):
        yaml_file.parse("a: [", "plan.yaml", PlanError)


def test_a_file_is_named_by_its_path(tmp_path: Path) -> None:
    file = tmp_path / "x.yaml"
    file.write_text("é: [1]\n", "utf-8")
    document = yaml_file.read(file, ReferenceFileError)
    assert document.value == {"é": [1]}
    assert document.name == str(file)


def test_a_byte_order_mark_does_not_matter(tmp_path: Path) -> None:
    file = tmp_path / "x.yaml"
    file.write_bytes(b"\xef\xbb\xbfa: 1\n")
    assert yaml_file.read(file, ReferenceFileError).value == {"a": 1}


def test_bad_utf8_is_an_error_with_its_line(tmp_path: Path) -> None:
    file = tmp_path / "x.yaml"
    file.write_bytes(b"a: 1\nb: \xff\n")
    with pytest.raises(ReferenceFileError, match=r"x\.yaml:2: not UTF-8"):
        yaml_file.read(file, ReferenceFileError)


def test_a_missing_file_and_a_folder_cannot_be_read(tmp_path: Path) -> None:
    for path in (tmp_path / "none.yaml", tmp_path):
        with pytest.raises(ReferenceFileError, match="cannot be read"):
            yaml_file.read(path, ReferenceFileError)
