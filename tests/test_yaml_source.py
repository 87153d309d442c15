import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st

from serve_eval import yaml_parsing, yaml_source
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


def _parse(text):
    return yaml_source.parse(text, "f.yaml", ReferenceFileError)


def test_plain_values_come_out_as_yaml_says():
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
def test_a_path_has_the_line_of_its_key_or_of_its_nearest_parent(keys, line):
    assert _parse(TEXT).line(*keys) == line


def test_a_time_stays_as_it_is_written():
    assert _parse("a: 2026-01-31 10:20:30\n").value == {"a": "2026-01-31 10:20:30"}


def test_numbers_that_read_as_they_are_written_are_numbers():
    assert _parse("[0, 00, 0.5, -0.25, 0x1F, 1_000, 089, 6.02e+23]").value == [
        0, 0, 0.5, -0.25, 31, 1000, "089", 6.02e23,
    ]  # fmt: skip


@pytest.mark.parametrize("written", ["1e-07", "1.5e5", "1E5", ".5e3", "-1e+16", "2.e3"])
@pytest.mark.parametrize("mark", ["", "\ufeff"])
def test_the_numbers_of_json_are_numbers(written, mark):
    """PyYAML does not read all of them as numbers.

    A text in quotes stays a text, and is written in quotes again.
    """
    content = {"number": float(written), "text": written, "longer": f"{written}x"}
    assert (
        _parse(f"{mark}number: {written}\ntext: '{written}'\nlonger: {written}x\n").value == content
    )
    assert _parse(yaml_source.dump(content)).value == content


def test_keys_may_be_the_texts_that_they_are_written_as():
    document = yaml_source.parse("1: a\nyes: {010: b, ~: c}\n", "f.yaml", PlanError, text_keys=True)
    assert document.value == {"1": "a", "yes": {"010": "b", "~": "c"}}
    assert document.line("yes", "010") == 2


@pytest.mark.parametrize("text", ["", "# only a comment\n"])
def test_an_empty_file_holds_none(text):
    document = _parse(text)
    assert document.value is None
    assert document.line("x") == 1


@pytest.mark.parametrize(
    ("text", "where", "what"),
    [
        ("a: 1\nb: 2\na: 3\n", "f.yaml:3:", "'a' is repeated; it is first on line 1"),
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
        ("a: 1\nb: 12:30\n", "f.yaml:2:", "in base 60, and YAML reads 12:30 as 750"),
        ("a: 190:20:30.15\n", "f.yaml:1:", "in base 60"),
        ("a: 010\n", "f.yaml:1:", "a number that begins with 0 is octal, and YAML reads 010 as 8"),
        (
            "a: 1\nb: 1e400\n",
            "f.yaml:2:",
            "it is too large for a number, and YAML reads 1e400 as inf",
        ),
        ('a: 1\nb: "x\\ud800"\n', "f.yaml:2:", "half of a surrogate pair"),
        ("a: 1\n\n? [x, y]\n: 2\n", "f.yaml:3:", "a plain value was expected"),
        ("a: 1\n  b: 2\n", "f.yaml:2:", "mapping values are not allowed"),
        ("a: [1, 2\n", "f.yaml:2:", "flow sequence"),
        ("a: 1\n---\nb: 2\n", "f.yaml:2:", "single document"),
        ("a: 1\nb: \x07\n", "f.yaml:2:", "control character"),
    ],
)
def test_what_is_not_plain_yaml_is_refused_with_its_line_and_a_hint(text, where, what):
    with pytest.raises(ReferenceFileError) as caught:
        _parse(text)
    assert str(caught.value).startswith(where)
    assert what in str(caught.value)
    assert caught.value.hint


def test_a_file_of_aliases_within_aliases_is_refused_at_once():
    bomb = "a0: &a0 [x, x]\n" + "".join(
        f"a{n}: &a{n} [*a{n - 1}, *a{n - 1}]\n" for n in range(1, 60)
    )
    with pytest.raises(ReferenceFileError, match=r"f\.yaml:1: anchors"):
        _parse(bomb)


@pytest.mark.parametrize(
    "text",
    [
        "[" * 10**5,
        "{a: " * 10**5,
        "[" * 10**5 + "]" * 10**5,
        "- " * 5000 + "x",
        "[" * 102 + "]" * 102,
    ],
    ids=range(5),
)
def test_very_deep_nesting_is_an_error_and_not_a_crash(text):
    with pytest.raises(ReferenceFileError, match="nested too deeply"):
        _parse(text)
    assert _parse("[" * 100 + "]" * 100).value


@pytest.mark.parametrize(
    "value", ["1" * 10**6, "0x" + "f" * 10**6, "1" + ":1" * 10**5, "!!float " + "1" * 10**6]
)
def test_a_number_that_takes_minutes_to_make_is_refused_at_once(value):
    with pytest.raises(
        ReferenceFileError,
        match=r"f\.yaml:2: '.*'\.\.\. is too long for a number or a date: put it in quotes",
    ):
        _parse(f"a: 1\nb: {value}\n")


def test_one_enormous_text_is_a_text():
    text = "x" * 5 * 10**6
    assert _parse(f"a: {text}\nb: |\n  {text}\n").value == {"a": text, "b": f"{text}\n"}


def test_a_file_of_another_size_than_any_of_cases_is_refused(tmp_path):
    file = tmp_path / "huge.yaml"
    with file.open("wb") as out:
        out.truncate(yaml_source.MOST_BYTES + 1)
    with pytest.raises(PlanError, match="is larger than 256 MiB"):
        yaml_source.read(file, PlanError)


PIECES = [
    "a",
    "b",
    ": ",
    "- ",
    "\n",
    "\n  ",
    "[",
    "]",
    "{",
    "}",
    ", ",
    "'",
    '"',
    "|\n",
    "#",
    "&x",
    "*x",
    "!!int ",
    "012",
]
PIECES += [
    "1_0",
    "1:30",
    "yes",
    "~",
    "\t",
    "é",
    "\x85",
    "\u2028",
    "\\",
    "---\n",
    "? ",
    "<<: ",
    "%",
    "\r\n",
    "\ufeff",
    "k: v\n",
]


@given(st.lists(st.sampled_from(PIECES), max_size=12).map("".join))
def test_libyaml_and_python_read_alike(text):
    """Python reads what libyaml refuses.

    The result is the same for what both read, and nothing that Python reads is refused.
    """

    def read(loader):
        before, yaml_parsing._FAST = yaml_parsing._FAST, loader
        try:
            document = _parse(text)
        except ReferenceFileError:
            return None
        finally:
            yaml_parsing._FAST = before
        lines = {path: line for path, line in document.lines.items() if path}
        return repr(document.value), lines, document.written

    slow, fast = read(None), read(getattr(yaml, "CSafeLoader", None))
    if slow is not None:
        assert fast == slow


def test_the_given_error_is_raised():
    with pytest.raises(PlanError, match=r"plan\.yaml:1"):
        yaml_source.parse("a: [", "plan.yaml", PlanError)


def test_a_file_is_named_by_its_path(tmp_path):
    file = tmp_path / "x.yaml"
    file.write_text("é: [1]\n", "utf-8")
    document = yaml_source.read(file, ReferenceFileError)
    assert document.value == {"é": [1]}
    assert document.name == str(file)


def test_a_byte_order_mark_does_not_matter(tmp_path):
    file = tmp_path / "x.yaml"
    file.write_bytes(b"\xef\xbb\xbfa: 1\n")
    assert yaml_source.read(file, ReferenceFileError).value == {"a": 1}


def test_bad_utf8_is_an_error_with_its_line(tmp_path):
    file = tmp_path / "x.yaml"
    file.write_bytes(b"a: 1\nb: \xff\n")
    with pytest.raises(ReferenceFileError, match=r"x\.yaml:2: not UTF-8"):
        yaml_source.read(file, ReferenceFileError)


def test_a_missing_file_and_a_folder_cannot_be_read(tmp_path):
    for path in (tmp_path / "none.yaml", tmp_path):
        with pytest.raises(ReferenceFileError, match="cannot be read"):
            yaml_source.read(path, ReferenceFileError)
