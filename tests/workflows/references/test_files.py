"""Test broken files of other tools, and entries in files that people edit."""

import copy
import json
import random
import sys
import zipfile
from dataclasses import dataclass

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from serve_eval import yaml_source
from serve_eval.errors import ReferenceFileError, ServeEvalError
from serve_eval.workflows.references import entries
from serve_eval.workflows.references.imports import files, import_results
from serve_eval.workflows.references.imports.recognise import read_source
from tests.workflows.references import foreign_files as foreign

ANSWERS = [("a", 1.0), ("b", 0.0)]
RESULTS = foreign.lm_eval_results(ANSWERS, "0.4.13")
LOG = foreign.inspect_log(ANSWERS)
REPORT = {
    "dataset_name": "gsm8k",
    "model_name": "m",
    "metrics": [{"name": "mean_acc", "num": 2, "score": 0.5}],
}
DOCUMENTS = [
    RESULTS,
    LOG,
    REPORT,
    foreign.nemo_results(0.5, 2),
    {"benchmark": {"name": "gsm8k", "scores": {"s": {"value": 0.5}}}, "config": {"model": "m"}},
    foreign.sgl_metrics(0.5),
    foreign.srt_gsm8k(0.5),
]


def _changed(path, value, content=RESULTS):
    """Return the JSON of a document with another value at a path of keys."""
    found = copied = copy.deepcopy(content)
    *keys, last = path.split("/")
    for key in keys:
        found = found[int(key) if isinstance(found, list) else key]
    found[last] = value
    return json.dumps(copied).encode()


@pytest.mark.parametrize(
    ("name", "raw", "told"),
    [
        ("a.json", b"", "a.json: no valid JSON: Expecting value, line 1, column 1"),
        ("a.json", json.dumps(RESULTS).encode()[:300], "a.json: no valid JSON"),
        ("a.json", b'{"a": 1}', "a.json: is no file of results of lm-eval, inspect, NeMo"),
        ("a.json", b"[1, 2]", "a.json: is no file of results"),
        ("a.json", b'{"a": "\xff"}', "a.json: is no UTF-8 text"),
        ("a.json", b"[" * 200_000, "a.json: its values are nested too deeply"),
        ("a.json", b'{"a": ' + b"1" * 5000 + b"}", "a.json: Exceeds the limit"),
        ("a.json", b"version https://git-lfs.github.com/spec/v1\n", "is a pointer of Git LFS"),
        (
            "a.json",
            _changed("results/gsm8k/exact_match,strict-match", float("nan")),
            "a.json: gsm8k: exact_match,strict-match is nan, no finite number",
        ),
        ("a.json", _changed("results/gsm8k", [1]), "results: gsm8k: must be an object, not list"),
        ("a.json", _changed("results", {}), "a.json: nothing was imported"),
        ("a.json", _changed("status", "error", LOG), "the run ended with status 'error'"),
        ("a.json", _changed("results/scores", None, LOG), "a.json: its results have no score"),
        ("a.json", _changed("metrics", [], REPORT), "a.json: metrics has no score"),
        ("a.json", _changed("metrics", [1], REPORT), "a.json: metrics: must be an object, not int"),
        ("a.json", _changed("accuracy", "x", foreign.srt_gsm8k(1)), "accuracy is 'x', no finite"),
        ("a.json", _changed("aggregate", {}, foreign.sgl_metrics(1)), "has neither pass@1 nor"),
        ("a.jsonl", b'{"doc_id": 0, "doc": {}, "arguments": {}}\n{"doc_id"', "a.jsonl:2: no valid"),
        ("a.jsonl", b'{"doc_id": 0, "doc": {}, "arguments": {}}\n[1]\n', "a.jsonl:2: must be an"),
        ("a.jsonl", b'{"doc_id": [], "doc": {}, "arguments": {}}\n', "doc_id must be a number"),
        ("a.jsonl", b'{"doc_id": 0, "doc": {}, "arguments": {}}\n', "no line has a score that is"),
        ("a.jsonl", b'{"other": 1}\n', "a.jsonl: is no file of results"),
        ("a.yml", b"results: &a {tasks: *a}\n", "a.yml:1: anchors"),
        ("a.yml", b"results: 1\n", "a.yml: is no file of results"),
        ("a.yml", b"results:\n  tasks:\n    t: {}\n", "a.yml: t: has no score"),
        ("a.eval", b"PK\x03\x04 cut", "a.eval: no readable zip archive"),
    ],
)
def test_the_error_names_the_file_and_the_cause(name, raw, told, tmp_path):
    file = tmp_path / name
    file.write_bytes(raw)
    with pytest.raises(ReferenceFileError) as caught:
        import_results(file, tmp_path / "refs", tasks={})
    assert told in str(caught.value)
    assert str(file) in str(caught.value)
    assert caught.value.exit_code == 2
    assert not (tmp_path / "refs").exists()


def _bomb(file, size):
    with zipfile.ZipFile(file, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("header.json", b" " * size)


def test_an_archive_with_more_than_the_limits_is_not_unpacked(tmp_path, monkeypatch):
    monkeypatch.setattr(files, "MOST_BYTES", 1 << 20)
    _bomb(tmp_path / "a.eval", 2 << 20)
    with pytest.raises(ReferenceFileError, match=r"a\.eval: header\.json: is larger than 1 MiB"):
        read_source(tmp_path / "a.eval")
    monkeypatch.setattr(files, "MOST_IN_ARCHIVE", 1 << 20)
    with pytest.raises(ReferenceFileError, match="its content is larger than 0 GiB"):
        read_source(tmp_path / "a.eval")


def test_an_archive_that_lies_about_the_size_of_a_part_is_refused(tmp_path):
    file = tmp_path / "a.eval"
    _bomb(file, 5000)
    raw = bytearray(file.read_bytes())
    place = raw.rindex(b"PK\x01\x02")
    raw[place + 24 : place + 28] = (10).to_bytes(4, "little")
    file.write_bytes(raw)
    with pytest.raises(ReferenceFileError, match=r"a\.eval: header\.json"):
        read_source(file)


def test_an_unfinished_log_and_one_by_an_unknown_method_are_refused(tmp_path):
    file = tmp_path / "a.eval"
    with zipfile.ZipFile(file, "w") as archive:
        archive.writestr("_journal/start.json", "{}")
    with pytest.raises(ReferenceFileError, match=r"has no header\.json: the run did not finish"):
        read_source(file)
    with zipfile.ZipFile(file, "w") as archive:
        archive.writestr("header.json", "{}")
    raw = bytearray(file.read_bytes())
    for mark, offset in ((b"PK\x01\x02", 10), (b"PK\x03\x04", 8)):
        place = raw.rindex(mark) + offset
        raw[place : place + 2] = (98).to_bytes(2, "little")
    file.write_bytes(raw)
    with pytest.raises(ReferenceFileError, match="compressed by a method") as caught:
        read_source(file)
    assert "inspect log convert --to json" in caught.value.hint


def test_a_log_by_zstandard_that_is_cut_or_cannot_be_read_is_refused(tmp_path, monkeypatch):
    file = foreign.compress_again(foreign.write_eval(tmp_path / "a.eval", {"samples": []}))
    raw = bytearray(file.read_bytes())
    raw[raw.index(b"header.json") + len("header.json")] ^= 255
    file.write_bytes(raw)
    with pytest.raises(ReferenceFileError, match=r"header\.json: cannot be read: zstd"):
        read_source(file)
    monkeypatch.setitem(sys.modules, "zstandard", None)
    with pytest.raises(ReferenceFileError, match="is compressed by zstandard") as caught:
        read_source(file)
    assert "optional extra inspect" in caught.value.hint


def test_a_line_and_a_document_beyond_the_limits_are_refused(tmp_path, monkeypatch):
    rows = [{"doc_id": 0, "doc": {}, "arguments": {}}, {"doc_id": "x" * 5000}]
    foreign.write_jsonl(tmp_path / "a.jsonl", rows)
    monkeypatch.setattr(files, "MOST_IN_LINE", 1000)
    with pytest.raises(ReferenceFileError, match=r"a\.jsonl:2: the line is longer than"):
        read_source(tmp_path / "a.jsonl")
    foreign.write_json(tmp_path / "a.json", {"other": "x" * 5000})
    monkeypatch.setattr(files, "MOST_BYTES", 1000)
    with pytest.raises(ReferenceFileError, match=r"a\.json: is larger than"):
        read_source(tmp_path / "a.json")


def test_a_result_survives_samples_that_cannot_be_read(tmp_path):
    file = foreign.write_lm_eval(tmp_path, ANSWERS, "0.4.13")
    [samples] = tmp_path.glob("samples_*")
    samples.write_text("version https://git-lfs.github.com/spec/v1\n")
    [one] = import_results(file, tmp_path / "refs", tasks={}).written
    assert one.value == 50.0
    assert "is a pointer of Git LFS" in one.remarks[0]


_JUNK = st.sampled_from(
    [None, True, -1, 0, 1e308, float("nan"), "", "text", "1e999", [], [[]], {}, {"a": {}}, 10**30]
)


def _replace_one(value, junk, rng):
    """Return a copy of a document in which one value, at any depth, is another."""
    if isinstance(value, dict | list) and value and rng.random() < 0.85:
        key = rng.choice(list(value) if isinstance(value, dict) else range(len(value)))
        copied = copy.copy(value)
        copied[key] = _replace_one(value[key], junk, rng)
        return copied
    return junk


@settings(
    max_examples=300, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
@given(document=st.sampled_from(DOCUMENTS), junk=_JUNK, seed=st.integers(0, 10**6))
def test_a_value_of_any_other_type_is_read_or_refused(document, junk, seed, tmp_path):
    rng = random.Random(seed)
    for _ in range(rng.choice((1, 1, 2))):
        document = _replace_one(document, junk, rng)
    file = foreign.write_json(tmp_path / "a.json", document)
    found = []
    told = str(file)
    try:
        found, _ = read_source(file)
    except ServeEvalError as error:
        told = str(error)
    assert str(file) in told
    assert all(one.scores for one in found)


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
    def text(self):
        return "".join(self.pieces)


@st.composite
def _layouts(draw):
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


def _read(text):
    return yaml_source.parse(text, "f.yaml", ReferenceFileError).value


def _same(found, wanted):
    assert json.dumps(found) == json.dumps(wanted)


def _append(text, key="m", entry=None):
    return entries.append_entry(text, "f.yaml", key, entry or ENTRY, ReferenceFileError)


def _replace(text, key="m", index=0, entry=None):
    return entries.replace_entry(text, "f.yaml", key, index, entry or ENTRY, ReferenceFileError)


@given(_layouts(), st.sampled_from(["a/b", "c: d", "e", "new one"]) | _TEXTS, _ENTRIES)
def test_what_is_appended_is_the_only_thing_that_comes_in(layout, key, entry):
    before = _read(layout.text)
    after = _append(layout.text, key, entry)
    _same(_read(after), {**before, key: [*before.get(key, []), entry]})
    old = layout.text.replace("{}\r\n", "").replace("{}\n", "") if not before else layout.text
    kept = next(i for i in range(len(old) + 1) if i == len(old) or after[i : i + 1] != old[i])
    assert after.endswith(old[kept:]), "the new text must begin and end with the old one"
    assert after.count("\r\n") == (after.count("\n") if "\r\n" in layout.text else 0)


@given(_layouts().filter(lambda layout: layout.items), st.data(), _ENTRIES)
def test_a_replaced_entry_leaves_all_around_it(layout, data, entry):
    piece, model, index = data.draw(st.sampled_from(layout.items))
    before = _read(layout.text)
    after = _replace(layout.text, model, index, entry)
    _same(
        _read(after),
        {**before, model: [entry if i == index else old for i, old in enumerate(before[model])]},
    )
    assert after.startswith("".join(layout.pieces[:piece]))
    assert after.endswith("".join(layout.pieces[piece + 1 :]))


def test_an_entry_looks_as_a_person_would_write_it():
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


def test_a_byte_order_mark_and_windows_line_ends_stay():
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
def test_a_style_that_is_not_edited_is_refused_with_its_line(text, said):
    for edit in (_append, _replace):
        with pytest.raises(ReferenceFileError) as raised:
            edit(text)
        assert str(raised.value).startswith(said)
        assert raised.value.hint


def test_an_edit_that_would_change_another_value_is_refused():
    for text in (
        "n:\n  - note: |\n      a line break behind it becomes part of this text",
        "m: !!seq\n  - accuracy: 1\n",
    ):
        with pytest.raises(
            ReferenceFileError, match="cannot be edited without changing other entries"
        ) as raised:
            _append(text)
        assert raised.value.hint.startswith("Nothing was written.")
