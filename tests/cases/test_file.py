"""Valid and invalid case files, with the message for each mistake."""

import json
from pathlib import Path

import jsonschema
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from serve_eval.cases import file, form
from serve_eval.cases.form import json_schema
from serve_eval.cases.questions import questions
from serve_eval.errors import PlanError
from serve_eval.tasks.cases import task
from serve_eval.yaml_source import parse
from tests.tasks.made_data import EXAMPLE

MANY = ", ".join(f"k{i}: {i}" for i in range(101))

BAD = {
    "nothing": ("", "1: expected tasks with cases, such as `capitals:` with a list below it"),
    "a list": ("- a\n", "1: expected tasks with cases, such as `capitals:` with a list below it"),
    "a number": ("c: 3\n", "1: c: expected a list of cases, or a mapping with `cases`"),
    "no YAML": (
        "c:\n  - case: a\n   input: b\n",
        (
            "3: while parsing a block collection, expected <block end>, but found '<block mapping"
            " start>'"
        ),
    ),
    "a key twice": ("c: []\nc: []\n", "2: the key 'c' is repeated; it is first on line 1"),
    "a name": (
        "my c:\n  - {case: a, input: {prompt: x}, expected: y}\n",
        (
            "1: 'my c' is not a task name: use at most 100 letters, digits,"
            " dots, dashes and underscores"
        ),
    ),
    "a name that no file could have": (
        f"{'n' * 101}:\n  - {{case: a, input: {{prompt: x}}, expected: y}}\n",
        (
            f"1: '{'n' * 101}' is not a task name: use at most 100 letters, digits,"
            " dots, dashes and underscores"
        ),
    ),
    "no case": ("c: []\n", "1: c: has no case"),
    "cases misspelt": (
        "c:\n  scorer: exact\n  case: []\n",
        "3: c.case: unknown key. Did you mean 'cases'?",
        (
            "1: c.cases: is missing: the list of the task's cases (values that prompts share"
            " go into"
            " `resources`)"
        ),
    ),
    "cases misspelt and nothing else that a task has": (
        "c:\n  description: x\n  case:\n    - {case: a, input: {prompt: x}, expected: y}\n",
        "3: c.case: unknown key. Did you mean 'cases'?",
        (
            "1: c.cases: is missing: the list of the task's cases (values that prompts share"
            " go into"
            " `resources`)"
        ),
    ),
    "cases as a mapping": ("c:\n  cases: {a: 1}\n", "2: c.cases: expected a list"),
    "what is common": (
        (
            "c:\n  iterations: 0\n  sampling: {max_tokens: many}\n  scorers: exact\n"
            "  cases: [{case: a, input: {prompt: x}, expected: y}]\n"
        ),
        "2: c.iterations: expected a whole number, 1 or more",
        "3: c.sampling: max_tokens: expected a whole number, got a text",
        "4: c.scorers: unknown key. Did you mean 'scorer'?",
    ),
    "a text": (
        "c:\n  - just text\n",
        "2: c: case number 1: expected a mapping with case, input and expected",
    ),
    "missing keys": (
        "c:\n  - input: {prompt: x}\n    expected: y\n  - {case: b, expected: y}\n",
        "2: c: case number 1: case: is missing",
        "4: c: case b: input: is missing",
    ),
    "an unknown key": (
        "c:\n  - case: a\n    input: {prompt: x}\n    expect: y\n",
        "4: c: case a: expect: unknown key. Did you mean 'expected'?",
    ),
    "a number for a name": (
        "c:\n  - {case: 3, input: {prompt: x}, expected: y}\n",
        "2: c: case number 1: case: expected a text, got a whole number",
    ),
    "an empty name": (
        "c:\n  - {case: '', input: {prompt: x}, expected: y}\n",
        "2: c: case : case: expected a text that is not empty",
    ),
    "an input that is a text": (
        "c:\n  - {case: a, input: hello, expected: y}\n",
        "2: c: case a: input: expected a mapping such as {prompt: ...}",
    ),
    "several prompts": (
        "c:\n  - case: a\n    input: {prompt: [a, b]}\n    expected: y\n",
        "3: c: case a: input.prompt: expected a text or a mapping, got a list",
    ),
    "turns": (
        (
            "c:\n  - case: a\n    input:\n      messages: [{role: user, text: x}]\n    expected:"
            " y\n  - case: b\n    input:\n      messages: [{role: bot, content: x}]\n   "
            " expected: y\n"
        ),
        "4: c: case a: input.messages: [0]: unknown key `text`",
        "8: c: case b: input.messages: [0].role: unknown word 'bot'",
    ),
    "tools": (
        "c:\n  - case: a\n    input: {prompt: x, tools: search}\n    expected: y\n",
        "3: c: case a: input.tools: expected a list, got a text",
    ),
    "sampling of a case": (
        (
            "c:\n  - case: a\n    input: {prompt: x}\n    expected: y\n    sampling: {temperature:"
            " 1, max_tokens: 0}\n"
        ),
        (
            "5: c: case a: sampling.temperature: unknown key. Known: max_tokens, stop. (the"
            " sampling of a task accepts more keys)"
        ),
        "5: c: case a: sampling.max_tokens: expected a whole number, 1 or more",
    ),
    "a scorer": (
        "c:\n  - {case: a, input: {prompt: x}, expected: y, scorer: exakt}\n",
        "2: c: case a: scorer: unknown scorer 'exakt'. Did you mean 'exact'?",
    ),
    "a scorer of the task": (
        "c:\n  scorer: exakt\n  cases:\n    - {case: a, input: {prompt: x}, expected: y}\n",
        "2: c.scorer: unknown scorer 'exakt'. Did you mean 'exact'?",
    ),
    "an option of a scorer": (
        "c:\n  - {case: a, input: {prompt: x}, expected: y, scorer: {exact: {ignorecase: true}}}\n",
        "2: c: case a: scorer.exact.ignorecase: unknown option. Did you mean 'ignore_case'?",
    ),
    "several scorers": (
        "c:\n  - {case: a, input: {prompt: x}, expected: y, scorer: [exact]}\n",
        "2: c: case a: scorer: expected a text or a mapping, got a list",
    ),
    "no without quotes": (
        "c:\n  - {case: a, input: {prompt: x}, expected: {answer: no}}\n",
        (
            "2: c: case a: expected.answer must be a text, such as `expected: Paris`, not true"
            " or false (YAML reads yes and no as these: put it in quotes for a text) (scorer"
            " exact)"
        ),
    ),
    "a number that was a text": (
        "c:\n  - {case: a, input: {prompt: x}, expected: 3.10}\n",
        (
            "2: c: case a: expected must be a text, such as `expected: Paris`, not a number with"
            " a decimal point (YAML keeps only its value, 3.1 for 3.10: put it in quotes)"
            " (scorer exact)"
        ),
    ),
    "a time that is a number": (
        "c:\n  - {case: a, input: {prompt: x}, expected: 12:30}\n",
        "2: digits with a colon are a number in base 60, and YAML reads 12:30 as 750",
    ),
    "words without quotes in options": (
        (
            "c:\n  - {case: a, input: {prompt: x}, expected: y, scorer: {yes_no: {yes: [yes], no:"
            " [no]}}}\n"
        ),
        (
            "2: c: case a: scorer.yes_no.no[0]: Expected `str`, got `bool` (YAML reads yes and no"
            " as true and false: put a text in quotes); scorer.yes_no.yes[0]: Expected `str`, got"
            " `bool` (YAML reads yes and no as true and false: put a text in quotes)"
        ),
    ),
    "what a prompt would write otherwise": (
        (
            'c:\n  - case: a\n    input: {prompt: "${v} ${w}", v: 3.10, w: [no, 1.5, 2, true], x:'
            " 0x1F,\n      tools: [{type: function, function: {name: f, strict: yes}}]}\n   "
            " expected: y\n"
        ),
        (
            "3: c: case a: input.v: YAML reads 3.10 as a number, so the prompt would show"
            " it differently: put it in quotes"
        ),
        (
            "3: c: case a: input.w.0: YAML reads no as true or false, so the prompt would show"
            " it differently: put it in quotes"
        ),
        (
            "3: c: case a: input.x: YAML reads 0x1F as a number, so the prompt would show"
            " it differently: put it in quotes"
        ),
    ),
    "half a character": (
        'c:\n  - {case: a, input: {prompt: "\\ud800"}, expected: y}\n',
        "2: '\\ud800' holds half of a surrogate pair, which is not a character",
    ),
    "nothing expected": (
        "c:\n  - {case: a, input: {prompt: x}}\n",
        (
            "2: c: case a: expected must be a text, such as `expected: Paris`, not nothing"
            " (scorer exact)"
        ),
    ),
    "a name that is not there": (
        'c:\n  - case: a\n    input: {prompt: "${cuontry}?", country: Peru}\n    expected: y\n',
        (
            "3: c: case a: input: ${cuontry}: unknown name 'cuontry'. Did you mean 'country'? "
            "Write $${ for a plain ${."
        ),
    ),
    "once for all variants": (
        'c:\n  - case: a\n    input: {prompt: "${z}", x: {m: 1, n: 2}}\n    expected: y\n',
        (
            "3: c: case a:m: input: ${z}: unknown name 'z'. Known: prompt, x. Write $${ for a"
            " plain ${."
        ),
    ),
    "no prompt": (
        "c:\n  - {case: a, input: {system_messages: [x]}, expected: y}\n",
        (
            "2: c: case a: input: no question: give a prompt, or messages that end"
            " with the user's turn"
        ),
    ),
    "an axis": (
        "c:\n  - {case: a, axes: [style], input: {prompt: x}, expected: y}\n",
        "2: c: case a: axes: 'style' is not an axis: input.style must be a mapping or a list",
    ),
    "an address": (
        (
            'c:\n  - case: a\n    axes: [k]\n    input: {prompt: "${k}", k: {a: A, b: B}}\n'
            "    expected: {by: k, values: {a: 1}}\n"
        ),
        "5: c: case a: expected: no expectation for k 'b'",
    ),
    "a case twice": (
        (
            "c:\n  - {case: a, input: {prompt: x}, expected: y}\n  - {case: a, input: {prompt: x},"
            " expected: y}\n"
        ),
        "3: c: case a: already defined at cases.yaml:2",
    ),
    "two answers": (
        (
            "c:\n  - {case: a, input: {prompt: x}, expected: y}\n  - {case: a, input: {prompt: x},"
            " expected: z}\n"
        ),
        "3: c: case a: the same question has another expectation at cases.yaml:2",
    ),
    "too many": (
        (
            f"c:\n  - case: a\n    input: {{prompt: x, a: {{{MANY}}}, b: {{{MANY}}}}}\n   "
            " expected: y\n"
        ),
        (
            "2: c: the cases expand to 10201, which exceeds max_expanded (10000; a alone"
            " expands to 10201): leave variants out, or raise the limit with"
            " --set cases:c.max_expanded=10201"
        ),
    ),
    "too many to be written": (
        json.dumps(
            {"c": [{"case": "a", "input": {f"k{i}": {"a": "", "b": ""} for i in range(40)}}]}
        ),
        (
            "1: c: the cases expand to 1000000000 or more, which exceeds max_expanded"
            " (10000; a alone expands to 1000000000 or more): leave variants out"
        ),
    ),
}


def test_files_without_any_task_are_told():
    Path("shared.yaml").write_text("resources: {a: b}\n")
    [problem] = _problems("shared.yaml")
    assert problem.endswith("shared.yaml: no tasks, only values that prompts share")


def test_keys_are_texts_as_they_are_written(tmp_path):
    """Without this rule, YAML would turn 1 into a number, yes into true and 010 into 8."""
    Path("cases.yaml").write_text(
        'c:\n  - case: a\n    axes: [k]\n    input: {prompt: "${k} ${r.3}", k: [1, "yes"]}\n'
        "    expected: {by: k, values: {1: one, yes: two}, }\nresources: {r: {3: three}}\n"
        "d:\n  - {case: a, input: {prompt: x}, expected: {answer: y, no: 1, ~: 2}}\n"
    )
    found = file.read(["cases.yaml"])
    asked = questions(found, "c").asked
    assert [(q.name, q.turns[0].text, q.expected) for q in asked] == [
        ("a:1", "1 three", "one"),
        ("a:yes", "yes three", "two"),
    ]
    task(name="d", path="cases.yaml")  # the keys that decide a score can be recorded


@pytest.fixture(autouse=True)
def _here(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)


def _problems(*paths):
    try:
        found = file.read(paths)
        for name in found.modules:
            questions(found, name)
    except PlanError as error:
        return error.problems
    return []


@pytest.mark.parametrize("name", BAD)
def test_every_problem_is_told_with_file_line_and_case(name):
    text, *messages = BAD[name]
    Path("cases.yaml").write_text(text)
    assert _problems("cases.yaml") == [f"cases.yaml:{message}" for message in messages]


def test_the_problems_of_several_files_are_told_at_once():
    Path("a.yaml").write_text("c: 3\n")
    Path("b.yaml").write_text("d: []\n")
    Path("c.yaml").write_text("e: [\n")
    first, second, third = _problems(".")
    assert first == "a.yaml:1: c: expected a list of cases, or a mapping with `cases`"
    assert second == "b.yaml:1: d: has no case"
    assert third.startswith("c.yaml:2: while parsing a flow")


def test_a_path_without_cases_is_told():
    Path("folder").mkdir()
    assert _problems("folder", "none.yaml") == [
        "folder: contains no case file (*.yaml, *.yml, also with .enc)",
        "none.yaml: no such file or folder of cases",
    ]


def test_modules_of_one_name_in_several_files_are_one_and_share_resources():
    Path("a.yaml").write_text("c:\n  - {case: a, input: {prompt: '${hi}'}, expected: x}\n")
    Path("b.yml").write_text("words: {}\nresources: {hi: Hello}\nc:\n  scorer: words\n  cases:\n"
                             "    - {case: b, input: {prompt: q}, expected: x}\n")  # fmt: skip
    found = file.read(["."])
    assert [Path(one.path).name for one in found.files] == ["a.yaml", "b.yml"]
    asked = questions(found, "c").asked
    assert [(q.name, q.turns[-1].text, q.scorer.name) for q in asked] == [
        ("a", "Hello", "words"),
        ("b", "q", "words"),
    ]


def test_what_two_files_say_of_one_module_must_agree():
    for name, scorer in (("a", "exact"), ("b", "words")):
        case = f"{{case: {name}, input: {{prompt: q}}, expected: x}}"
        Path(f"{name}.yaml").write_text(
            f"shared: {{k: {name}}}\nc:\n  scorer: {scorer}\n  cases: [{case}]\n"
        )
    assert _problems(".") == [
        "b.yaml:1: shared: has another value at a.yaml:1",
        "b.yaml:3: c.scorer: has another value at a.yaml:3",
    ]


def test_a_file_that_is_named_twice_is_read_once():
    Path("a.yaml").write_text("c:\n  - {case: a, input: {prompt: q}, expected: x}\n")
    assert len(file.read(["a.yaml", ".", "./a.yaml"]).modules["c"].cases) == 1


def test_a_file_that_changed_is_read_anew():
    Path("a.yaml").write_text("c:\n  - {case: a, input: {prompt: q}, expected: x}\n")
    assert file.read(["a.yaml"]).modules.keys() == {"c"}
    Path("a.yaml").write_text("dd:\n  - {case: a, input: {prompt: q}, expected: x}\n")
    assert file.read(["a.yaml"]).modules.keys() == {"dd"}


def test_the_parts_of_a_case_say_what_is_sent():
    Path("a.yaml").write_text(
        "c:\n  sampling: {max_tokens: 9, temperature: 0.5, stop: [END]}\n  system_messages: [S]\n "
        " prompt: 'Q ${x}'\n  cases:\n    - {case: a, input: {x: 1}, expected: y}\n    - case: b\n "
        "     input: {prompt: P, system_messages: [], tools: [{type: function}]}\n      sampling:"
        " {max_tokens: 3, stop: []}\n      expected: {parts_of_query: [y]}\n"
    )
    found = questions(file.read(["a.yaml"]), "c")
    assert (found.sampling.max_tokens, found.sampling.temperature, found.sampling.stop) == (
        9,
        0.5,
        ("END",),
    )
    first, second = found.asked
    assert [(turn.role, turn.text) for turn in first.turns] == [("system", "S"), ("user", "Q 1")]
    assert first.override is None
    assert [(turn.role, turn.text) for turn in second.turns] == [("user", "P")]
    assert (second.override.max_tokens, second.override.stop) == (3, ())
    assert second.override.extra == {"tools": [{"type": "function"}]}
    assert (first.scorer.name, second.scorer.name) == ("exact", "regex")


def test_all_that_is_asked_makes_the_id_and_nothing_else_does():
    def id_of(more, scorer="exact"):
        text = (
            f"resources: {{r: R}}\nc:\n  scorer: {scorer}\n  cases:\n    - case: a\n      expected:"
            f" y\n{more}"
        )
        Path("a.yaml").write_text(text)
        [asked] = questions(file.read(["a.yaml"]), "c").asked
        return asked.id

    plain = id_of("      input: {prompt: q}\n")
    assert plain.startswith("a#q")
    assert id_of("      input: {prompt: q, unused: 1}\n", "words") == plain
    others = {
        id_of("      input: {prompt: '${r}'}\n"),
        id_of("      input: {prompt: q, system_messages: [s]}\n"),
        id_of("      input: {prompt: q, tools: [{type: function}]}\n"),
        id_of("      input: {prompt: q}\n      sampling: {max_tokens: 3}\n"),
        plain,
    }
    assert len(others) == 5


# --------------------------------------------------------------------------------------------------
# the schema for editors


def _valid(text):
    return bool(
        jsonschema.Draft202012Validator(json_schema()).is_valid(parse(text, "x", PlanError).value)
    )


def test_the_schema_is_one_and_takes_the_example():
    jsonschema.Draft202012Validator.check_schema(json_schema())
    assert json.dumps(json_schema())
    assert _valid(EXAMPLE.read_text())


@pytest.mark.parametrize(
    "name",
    [
        "a list", "a number", "cases misspelt", "cases as a mapping", "what is common", "a text",
        "missing keys", "an unknown key", "a number for a name", "an empty name",
        "an input that is a text", "several prompts", "turns", "tools", "sampling of a case",
        "several scorers",
    ],
)  # fmt: skip
def test_the_schema_refuses_what_is_wrong_in_form(name):
    assert not _valid(BAD[name][0])


def test_the_example_of_the_page_is_what_it_says():
    page = (Path(__file__).parents[2] / "docs/own-questions.md").read_text()
    text = page.split("```yaml\n")[1].split("```")[0]
    assert _valid(text)
    Path("page.yaml").write_text(text)
    asked = questions(file.read(["page.yaml"]), "capitals").asked
    assert [(q.name, q.turns[-1].text, q.scorer.name) for q in asked] == [
        ("europe:france", "What is the capital of France?", "exact"),
        ("asia:japan", "What is the capital of Japan?", "words"),
        ("asia:nepal", "What is the capital of Nepal?", "words"),
    ]
    assert {q.turns[0].text for q in asked} == {"Answer with the name alone."}


# --------------------------------------------------------------------------------------------------
# random content

_SCALARS = st.one_of(
    st.none(), st.booleans(), st.integers(-2, 3), st.sampled_from(["", "x", "${x}", "query", "a:b"])
)
_KEYS = st.sampled_from(
    [key for kind in (form.Case, form.Input, form.ModuleForm, form.Turn) for key in form.keys(kind)]
) | st.sampled_from(["query", "format", "caption", "answer", "by", "values", "x", "words"])
_VALUES = st.recursive(
    _SCALARS,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(_KEYS, inner, max_size=4),
    max_leaves=12,
)
_CASES = st.fixed_dictionaries(
    {"case": st.sampled_from(["a", "b"]), "input": st.dictionaries(_KEYS, _VALUES, max_size=4)},
    optional={
        "expected": _VALUES,
        "scorer": _VALUES,
        "axes": _VALUES,
        "zip_with": _VALUES,
        "sampling": _VALUES,
    },
)
_VARIANTS = st.dictionaries(_KEYS, _VALUES, min_size=1, max_size=2)
_NEARLY_RIGHT = st.fixed_dictionaries(
    {
        "case": st.just("a"),
        "input": st.fixed_dictionaries(
            {"prompt": st.just("p") | _VARIANTS},
            optional={
                "system_messages": _VARIANTS,
                "query": _VARIANTS,
                "caption": _VARIANTS,
                "x": _VALUES,
            },
        ),
        "expected": st.just("y") | _VALUES,
    },
    optional={
        "axes": st.lists(_KEYS, max_size=2),
        "zip_with": st.dictionaries(_KEYS, _KEYS, max_size=1),
    },
)


@given(
    st.lists(_NEARLY_RIGHT | _CASES | _VALUES, min_size=1, max_size=3),
    st.dictionaries(_KEYS, _VALUES, max_size=3),
    st.sampled_from(["any.yaml", "any_data.yaml"]),
)
@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_whatever_is_in_a_file_the_only_error_is_one_that_says_what_is_wrong(cases, common, name):
    Path(name).write_text(json.dumps({"c": {**common, "cases": cases}}))
    assert all(isinstance(problem, str) and problem for problem in _problems(name))
