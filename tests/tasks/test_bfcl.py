import hashlib
import json
from pathlib import Path

import pytest

from serve_eval.errors import DatasetError, PlanError
from serve_eval.plan.prepared_task import request_of
from serve_eval.schema import DataRoots, Message, Need, Outcome, Response, ToolCall
from serve_eval.tasks._bfcl_checking import (
    CallError,
    ExpectedCall,
    MadeCall,
    check_call,
    check_calls,
)
from serve_eval.tasks._bfcl_literals import read_java, read_javascript
from serve_eval.tasks._bfcl_rows import CATEGORIES, LEADERBOARD, weight_of
from serve_eval.tasks._bfcl_scoring import UnreadableError, read_text
from serve_eval.tasks.bfcl import SOURCE, task
from tests.tasks.made_suites import write_bfcl

SHARED = Path(__file__).resolve().parents[3] / "shared" / "data" / "bfcl"
REQUESTS = {
    "fc": "1a65520ef3ef4f4b52ed84528bcbb1e04476f138cf9efb8b86225bff7e9e702e",
    "prompt": "6c5d0ea993a0563cfa4da323dd98f73ea99d1457916125f445052b0d03db760a",
}
"""Hashes of the requests of the real rows."""
SMALL = dict.fromkeys(CATEGORIES, 3)


@pytest.fixture(scope="module")
def roots(tmp_path_factory):
    root = tmp_path_factory.mktemp("bfcl")
    write_bfcl(root / "bfcl", SMALL)
    return DataRoots(roots=(root,), allow_fewer=True)


def _sample(roots, name, **options):
    loaded = task(**options).load(roots, 39)
    return next(sample for sample in loaded.samples if sample.id == name)


def test_a_request_offers_the_functions_with_json_types(roots):
    sent = request_of(task(), _sample(roots, "live_parallel_multiple_1-1-0")).extra
    assert sent["tool_choice"] == "auto"
    area, paint = (tool["function"] for tool in sent["tools"])
    assert area["name"] == "shape_area"
    assert area["description"].endswith(" Note that the provided function is in Python 3 syntax.")
    assert area["parameters"]["type"] == "object"
    assert area["parameters"]["properties"]["height"] == {
        "type": "number",
        "description": "The height. This is a float type value.",
        "format": "float",
    }
    of = paint["parameters"]["properties"]
    assert (of["at"]["type"], of["at"]["items"]) == ("array", {"type": "number"})
    assert of["style"]["type"] == "object"
    assert of["style"]["properties"]["strength"]["format"] == "float"
    assert of["steps"]["items"]["type"] == "object"
    assert of["steps"]["items"]["properties"]["tool"]["type"] == "string"
    assert task().requires == {Need.TOOLS}


def test_the_prompt_mode_lists_the_functions_as_they_are(roots):
    made = task(mode="prompt")
    assert made.requires == frozenset()
    sample = _sample(roots, "live_simple_0-0-0", mode="prompt")
    assert sample.override is None
    system, user = sample.prompt
    assert isinstance(system, Message)
    assert isinstance(user, Message)
    assert system.text.startswith("You are an expert in composing functions.You are given")
    assert '"name": "shape.area"' in system.text
    assert '"type": "float"' in system.text
    assert system.text.endswith("]\n\n\nYou are brief.")
    assert user.text == "Question 0 of live_simple."


def _served(*calls):
    made = tuple(ToolCall(name, arguments) for name, arguments in calls)
    return Response(text="", finish_reason="tool_calls", tool_calls=made)


RIGHT = '{"width": 1, "height": 2.5}'
TWO = '{"width": 8, "height": 9}'


@pytest.mark.parametrize(
    ("name", "response", "outcome", "mode"),
    [
        ("simple_python_1", _served(("shape_area", RIGHT)), Outcome.CORRECT, None),
        ("simple_python_1", _served(("shape.area", RIGHT)), Outcome.WRONG, CallError.FUNCTION),
        ("simple_python_1", _served(("shape_area", "{")), Outcome.UNPARSED, CallError.UNREADABLE),
        ("simple_python_1", _served(("shape_area", "[]")), Outcome.UNPARSED, CallError.UNREADABLE),
        ("simple_python_1", _served(), Outcome.WRONG, CallError.NONE),
        ("simple_python_1", _served(*[("shape_area", RIGHT)] * 2), Outcome.WRONG, CallError.COUNT),
        ("parallel_1", _served(("shape_area", TWO), ("shape_area", RIGHT)), Outcome.CORRECT, None),
        ("irrelevance_1", _served(), Outcome.CORRECT, None),
        ("irrelevance_1", _served(("shape_area", "{}")), Outcome.WRONG, CallError.NEEDLESS),
        # The leaderboard sees no call in arguments that are no JSON object.
        ("irrelevance_1", _served(("shape_area", "{")), Outcome.CORRECT, None),
        ("live_relevance_1-1-0", _served(("nonsense", "{}")), Outcome.CORRECT, None),
        ("live_relevance_1-1-0", _served(), Outcome.WRONG, CallError.NONE),
    ],
)
def test_calls_that_the_server_parsed(roots, name, response, outcome, mode):
    score = task().score(_sample(roots, name), response)
    assert (score.outcome, score.mode) == (outcome, mode)
    assert score.value == float(outcome is Outcome.CORRECT)


@pytest.mark.parametrize(
    ("text", "right"),
    [
        ("[shape.area(width=1, height=2.5)]", True),
        ("```\nshape.area(width=1, height=2.5)\n```", True),
        ("'[shape.area(width=1, height=2.5)]'", False),
        ("[shape.area(width=2-1, height=5/2)]", True),
        ("[shape_area(width=1, height=2.5)]", False),
        ("[shape.area(1, 2.5)]", False),
        ("The area is 2.5.", False),
    ],
)
def test_calls_in_a_text(roots, text, right):
    sample = _sample(roots, "simple_python_1", mode="prompt")
    score = task(mode="prompt").score(sample, Response(text=text, finish_reason="stop"))
    assert score.value == float(right)


@pytest.mark.parametrize(
    ("text", "arguments"),
    [
        ("f(a=(1, 'x'), b={'k': [None]})", {"a": (1, "x"), "b": {"k": [None]}}),
        ("f(a=true, b=x[0], c=g(1), d=g(y=2))", None),
        ("f(a=not True, b=-3, c=+3)", {"a": -1, "b": -3, "c": -3}),
        ("f(a=..., b=3 * 4 + 1)", {"a": "...", "b": 13}),
        ("f(a=+2 - ~1 * 2 ** 3, b='x' + 'y')", {"a": 18, "b": "xy"}),
    ],
)
def test_values_in_a_text(text, arguments):
    if arguments is None:
        arguments = {"a": "true", "b": "x[0]", "c": "g(1)", "d": {"g": {"y": 2}}}
    assert read_text(text) == [MadeCall("f", arguments)]


@pytest.mark.parametrize(
    "text",
    [
        "",
        "f(a=__import__('os').system('true') + 1)",
        "f(a=9**9**9)",
        "f(a='x' * 10)",
        "f(a='x' + 1)",
        "f(a=~1.5 + 1)",
        "f(a=x + 1)",
        "f(a=1/0)",
        "f(a=lambda: 1)",
        "f(a=x.y)",
        "f(a=f'{1}')",
        "f(",
        "f(a=1), 2",
        "[" * 5000,
    ],
)
def test_a_text_without_calls_is_never_run(text):
    if text:
        with pytest.raises(UnreadableError):
            read_text(text)
    else:
        assert read_text(text) == []


def _expect(kind, *values, items="", required=True):
    return ExpectedCall(
        name="f",
        values={"a": list(values)},
        types={"a": (kind, items)},
        required=["a"] if required else [],
    )


TEXTS = ("array", "string")


@pytest.mark.parametrize(
    ("expected", "value", "error"),
    [
        (_expect("integer", 5), 5, None),
        (_expect("integer", 5), 5.0, CallError.TYPE),
        (_expect("integer", 1), True, CallError.TYPE),
        (_expect("float", 5.0), 5, None),
        (_expect("float", 5), 5, None),
        (_expect("float", 5.0), 10**400, CallError.TYPE),
        (_expect("boolean", True), 1, CallError.TYPE),
        (_expect("string", "April 1, 2024"), "april 1 2024", None),
        (_expect("string", "it's"), 'It"s', None),
        (_expect("string", "Rome"), "Romes", CallError.VALUE),
        (_expect("any", "x"), 5, CallError.TYPE),
        (_expect("integer", "count"), "count", None),
        (_expect("integer", "count"), "Count", CallError.VALUE),
        (_expect("array", ["New York", "b"], items="string"), ["new york", "B"], None),
        (_expect("array", ["a", "b"], items="string"), ["b", "a"], CallError.VALUE),
        (_expect("array", ["a"], items="string"), [1], CallError.TYPE),
        (_expect("array", [], items="string"), [], None),
        (_expect("array", "", items="string"), [], None),
        (_expect("array", items="string"), [], CallError.TYPE),
        (_expect("tuple", [1, 2], items="integer"), (1, 2), None),
        (_expect("array", [1, 2], items="integer"), (1, 2), CallError.TYPE),
        (_expect("dict", {"k": ["A b"], "l": [1, ""]}), {"k": "ab"}, None),
        (_expect("dict", {"k": ["A b"], "l": [1]}), {"k": "ab"}, CallError.VALUE),
        (_expect("dict", {"k": [1]}), {"k": 1, "m": 1}, CallError.VALUE),
        (_expect("array", [{"k": [1]}], items="dict"), [{"k": 1}], None),
        (_expect("array", [{"k": [1]}], items="dict"), [{"k": 1}, {"k": 1}], CallError.VALUE),
        (_expect("array", "", [{"k": [1]}], items="dict"), ["x"], CallError.VALUE),
        (_expect("dict", "theme"), "theme", None),
        (_expect("dict", "theme"), "Theme", CallError.VALUE),
        (_expect("array", "rows", items="string"), "rows", None),
        (_expect("string", 5), 5, None),
        (_expect("unheard", 1), 1, CallError.TYPE),
    ],
)
def test_one_argument(expected, value, error):
    assert check_call(expected, MadeCall("f", {"a": value})) == error


def test_arguments_that_are_missing_or_not_expected():
    free, needed = _expect("integer", 5, "", required=False), _expect("integer", 5)
    unmarked = _expect("integer", 5, required=False)
    assert check_call(free, MadeCall("f", {})) is None
    assert check_call(needed, MadeCall("f", {})) == CallError.MISSING
    assert check_call(unmarked, MadeCall("f", {})) == CallError.MISSING
    assert check_call(needed, MadeCall("f", {"a": 5, "b": 1})) == CallError.UNEXPECTED


def test_calls_are_matched_from_the_first_expected_one():
    wide, narrow = _expect("integer", 1, 2), _expect("integer", 1)
    one, two = MadeCall("f", {"a": 1}), MadeCall("f", {"a": 2})
    assert check_calls([wide, narrow], [two, one]) is None
    assert check_calls([wide, narrow], [one, two]) == CallError.VALUE


def test_the_value_is_the_mean_of_the_three_parts(data_root):
    made = task()
    loaded = made.load(DataRoots(roots=(data_root,)), 3641)
    assert (len(loaded.samples), loaded.deviation, loaded.notes) == (3641, None, ())
    known = {"simple_python": 1, "live_multiple": 1, "irrelevance": 1, "live_relevance": 1}
    scored = []
    for sample in loaded.samples:
        right = float(sample.metadata["category"] in known)
        weight = weight_of(sample)
        score = made.score(sample, _served())
        parts = {"weighted correct": weight * right, "weight": weight}
        scored.append((sample, score.__class__(value=right, outcome=score.outcome, parts=parts)))
    wanted = (1 / 4 * 1 / 3 + 1053 / 1351 + 1 / 2) / 3
    assert LEADERBOARD.of(scored) == pytest.approx(wanted, abs=1e-12)
    sums = [sum(score.parts[part] for _, score in scored) for part in LEADERBOARD.sums.parts]
    assert LEADERBOARD.sums.value(sums) == pytest.approx(wanted, abs=1e-12)
    shown = made.breakdown([(sample, score.value) for sample, score in scored])
    parts = {name: one["value"] for name, one in shown["part"].items()}
    assert parts == pytest.approx(
        {"non-live": 100 / 12, "live": 100 * 1053 / 1351, "irrelevance": 50.0}
    )
    assert shown["category"]["live_relevance"] == {"value": 100.0, "scored": 16}


def test_a_part_of_the_samples_has_every_category_by_its_size(data_root):
    samples = task(num_samples=350).load(DataRoots(roots=(data_root,)), 350).samples
    counts = [sum(s.metadata["category"] == name for s in samples) for name in CATEGORIES]
    wanted = [category.rows * 350 / 3641 for category in CATEGORIES.values()]
    assert all(abs(count - share) <= 1 for count, share in zip(counts, wanted, strict=True))


def test_relevance_alone_has_a_value(roots):
    loaded = task(categories=["live_relevance"]).load(roots, 16)
    assert {weight_of(sample) for sample in loaded.samples} == {1.0}


def test_a_row_that_no_answer_can_satisfy_is_named(tmp_path):
    write_bfcl(tmp_path, {"simple_python": 2})
    gold = tmp_path / "possible_answer/BFCL_v4_simple_python.json"
    rows = [json.loads(line) for line in gold.read_text().splitlines()]
    rows[1]["ground_truth"] = [{"shape.area": {"width": [], "height": [1.0]}}]
    gold.write_text("\n".join(map(json.dumps, rows)))
    roots = DataRoots(roots=(tmp_path,), allow_fewer=True)
    loaded = task(categories=["simple_python"]).load(roots, 400)
    assert loaded.notes == (
        "no answer to 1 sample can be right, as on the leaderboard: simple_python_1",
    )
    assert loaded.deviation == "2 rows, where these categories have 400"


def test_files_that_are_missing_or_damaged_are_named(tmp_path):
    roots = DataRoots(roots=(tmp_path,), allow_fewer=True)
    chosen = task(categories=["simple_python"])
    write_bfcl(tmp_path, {"simple_python": 2})
    questions = tmp_path / "BFCL_v4_simple_python.json"
    gold = tmp_path / "possible_answer" / questions.name
    whole = questions.read_text()
    questions.write_text(whole + "\n{}")
    with pytest.raises(DatasetError, match="json:3: "):
        chosen.load(roots, 2)
    questions.write_text(whole)
    gold.write_text(gold.read_text().splitlines()[0])
    with pytest.raises(DatasetError, match="no answer to simple_python_1"):
        chosen.load(roots, 2)
    gold.unlink()
    with pytest.raises(DatasetError, match="is missing"):
        chosen.load(roots, 2)


def test_functions_of_java_and_javascript_take_texts(roots):
    java, script = (
        request_of(task(), _sample(roots, f"simple_{name}_1")).extra["tools"][0]["function"]
        for name in ("java", "javascript")
    )
    assert java["description"].endswith(" is in Java 8 SDK syntax.")
    of = java["parameters"]["properties"]
    assert of["names"] == {
        "type": "string",
        "description": "The names. This is Java ArrayList type parameter in string representation."
        " The list elements are of type String; they are not in string representation.",
    }
    assert of["store"]["description"].endswith("any type of Java object in string representation.")
    pen = script["parameters"]["properties"]["pen"]
    assert pen["type"] == "string"
    assert "properties" not in pen
    assert pen["description"].endswith(
        '{"colour": {"type": "String", "description": "Its colour."}}'
    )


@pytest.mark.parametrize(
    ("text", "kind", "items", "value"),
    [
        ("42L", "long", "", 42),
        ("42", "long", "", "42"),
        ("-7", "integer", "", -7),
        ("1.5e1F", "float", "", 15.0),
        ("1.5", "double", "", 1.5),
        ("true", "boolean", "", True),
        ("yes", "boolean", "", "yes"),
        ('"x"', "String", "", '"x"'),
        ("new int[]{1, 2}", "Array", "integer", [1, 2]),
        ('new String[]{"a"}', "Array", "String", ['"a"']),
        ("ids", "Array", "integer", "ids"),
        ("new ArrayList<>()", "ArrayList", "long", []),
        ('new ArrayList<>(Arrays.asList("a", "b"))', "ArrayList", "String", ["a", "b"]),
        ("new ArrayList<Long>() {{ add(1L); add(2L); }}", "ArrayList", "long", [1, 2]),
        (
            'new HashMap<String, Object>() {{ put("a", true); put("b", 2L); put("c", 1.5f); '
            'put("d", "x"); put("e", y); }}',
            "HashMap",
            "",
            {"a": True, "b": 2, "c": 1.5, "d": "x", "e": "y"},
        ),
        ("new HashMap<>()", "HashMap", "", {}),
        ("map", "HashMap", "", "map"),
    ],
)
def test_literals_of_java(text, kind, items, value):
    found = read_java(text, kind, items)
    assert (type(found), found) == (type(value), value)


@pytest.mark.parametrize(
    ("text", "kind", "items", "value"),
    [
        ("5", "integer", "", 5),
        ("5.0", "integer", "", "5.0"),
        ("5", "float", "", 5.0),
        ("5n", "Bigint", "", 5),
        ("false", "Boolean", "", False),
        ("'x'", "String", "", "x"),
        ("x", "any", "", "x"),
        ("['a', \"b\"]", "array", "String", ["a", "b"]),
        ("[1, 2.5]", "array", "float", [1.0, 2.5]),
        ("new Array(1, 2)", "array", "integer", [1, 2]),
        ("[[1, 'x'], [true]]", "array", "array", [[1, "x"], [True]]),
        ("[ ]", "array", "float", []),
        ("items", "array", "String", "items"),
        ("{}", "dict", "", {}),
        ("{'a': 1, b: [2, x], \"c\": 'y'}", "dict", "", {"a": 1, "b": [2, "x"], "c": "y"}),
        ("state", "dict", "", "state"),
    ],
)
def test_literals_of_javascript(text, kind, items, value):
    found = read_javascript(text, kind, items)
    assert (type(found), found) == (type(value), value)


@pytest.mark.parametrize(
    ("value", "error"), [("41L", None), (41, CallError.TYPE), ("41", CallError.TYPE)]
)
def test_an_argument_in_java_is_a_text(value, error):
    expected = ExpectedCall(
        name="f",
        values={"a": [41]},
        types={"a": ("long", "")},
        required=["a"],
        language="java",
    )
    assert check_call(expected, MadeCall("f", {"a": value})) == error


def test_the_prompt_mode_asks_in_python_only():
    assert task(mode="prompt").hypothesis.num_samples == 3491
    with pytest.raises(PlanError, match="simple_java is for mode fc"):
        task(mode="prompt", categories=["simple_java"])


def test_wrong_options_are_refused():
    with pytest.raises(PlanError, match="unknown category 'simple'"):
        task(categories=["simple"])
    with pytest.raises(PlanError, match="num_samples"):
        task(num_samples=0)
    with pytest.raises(PlanError, match="must not be empty"):
        task(categories=[])


def _hash_requests(mode):
    """Return the hash of the requests of all real rows, in the order of their ids."""
    made = task(mode=mode)
    samples = made.load(DataRoots(roots=(SHARED,)), 3641).samples
    sent = [request_of(made, sample) for sample in sorted(samples, key=lambda one: one.id)]
    turns = [[(turn.role, turn.content) for turn in one.prompt] for one in sent]
    return hashlib.sha256(json.dumps([turns, [one.extra for one in sent]]).encode()).hexdigest()


@pytest.mark.skipif(not SHARED.is_dir(), reason="the real files are not next to the checkout")
def test_the_real_files_and_their_requests_are_the_known_ones():
    for name, sha256 in SOURCE.sha256.items():
        assert hashlib.sha256((SHARED / name).read_bytes()).hexdigest() == sha256, name
    assert {mode: _hash_requests(mode) for mode in REQUESTS} == REQUESTS


@pytest.mark.skipif(not SHARED.is_dir(), reason="the real files are not next to the checkout")
@pytest.mark.parametrize(("mode", "rows", "hopeless"), [("fc", 3641, 6), ("prompt", 3491, 4)])
def test_every_real_row_has_an_answer_that_is_right(mode, rows, hopeless):
    made = task(mode=mode)
    loaded = made.load(DataRoots(roots=(SHARED,)), rows)
    assert (len(loaded.samples), loaded.deviation) == (rows, None)
    told, _, names = loaded.notes[0].partition(": ")
    assert told == f"no answer to {hopeless} samples can be right, as on the leaderboard"
    for sample in loaded.samples:
        right, wrong = (made.score(sample, _answer(text, mode)) for text in made.answers(sample))
        assert right.value == float(sample.id not in names.split(", ")), sample.id
        assert wrong.value == 0.0, sample.id


def _answer(text, mode):
    if mode == "prompt" or not text.startswith("{"):
        return Response(text=text, finish_reason="stop")
    calls = json.loads(text)["tool_calls"]
    return _served(*[(call["name"], json.dumps(call["arguments"])) for call in calls])
