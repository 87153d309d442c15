"""Test tasks whose answers are programs: HumanEval and LiveCodeBench."""

import asyncio
import base64
import json
import pickle
import random
import zlib
from pathlib import Path

import msgspec
import pytest

from serve_eval.errors import DatasetError, PlanError, SandboxError
from serve_eval.sandbox.probe import strongest
from serve_eval.schema import DataRoots, ExitReason, Outcome, Response
from serve_eval.tasks import livecodebench
from serve_eval.tasks._livecodebench_checks import is_same_output, read_pickled_text, read_tests
from serve_eval.tasks.humaneval import task
from tests.tasks.made_data import contest_row, write_jsonl, write_livecodebench

STOPS = ("\nclass", "\ndef", "\n#", "\nif", "\nprint")
OWN = [
    {
        "task_id": "Own/0",
        "prompt": (
            'from typing import List\n\n\ndef pairs(xs: List[int]) -> int:\n    """Equal'
            ' neighbours."""\n'
        ),
        "entry_point": "pairs",
        "canonical_solution": "    return sum(a == b for a, b in zip(xs, xs[1:]))\n",
        "test": (
            "def check(candidate):\n    assert candidate([]) == 0\n    assert candidate([1, 1, 1])"
            " == 2\n"
        ),
    },
    {
        "task_id": "Own/1",
        "prompt": (
            'def half(x: float):\n    return x / 2\n\n\ndef quarter(x: float) -> float:\n    """A'
            ' fourth."""\n'
        ),
        "entry_point": "quarter",
        "canonical_solution": "    return half(half(x))\n",
        "test": "def check(candidate):\n    assert abs(candidate(2) - half(1)) < 1e-9\n",
    },
]


def _scores(made, asked):
    """Run the answers in a sandbox and return their scores."""

    async def run():
        sandbox, _ = await strongest()

        async def score(sample, text):
            response = Response(text=text, finish_reason="stop")
            program = made.program(sample, response)
            ran = None if program is None else await sandbox.run(program)
            return made.score(sample, msgspec.structs.replace(response, ran=ran))

        return await asyncio.gather(*(score(sample, text) for sample, text in asked))

    try:
        return asyncio.run(run())
    except SandboxError as error:
        pytest.skip(str(error))


@pytest.fixture
def own(tmp_path):
    (tmp_path / "humaneval").mkdir()
    (tmp_path / "humaneval/test.jsonl").write_bytes(
        b"".join(msgspec.json.encode(row) + b"\n" for row in OWN)
    )
    return lambda made: list(made.load(DataRoots(roots=(tmp_path,)), len(OWN)).samples)


@pytest.mark.parametrize(
    ("which", "text", "outcome"),
    [
        (
            0,
            "    n = 0\n    for a, b in zip(xs, xs[1:]):\n        n += a == b\n    return n\n",
            Outcome.CORRECT,
        ),
        (0, "    return 0\n\ndef unfinished(", Outcome.WRONG),
        (0, "    return sum(map(int.__eq__, xs, xs[1:]))\n\ndef unfinished(", Outcome.CORRECT),
        (0, "    import sys; sys.exit(0)\n", Outcome.WRONG),
        (0, "    print('passed'); import os; os._exit(0)\n", Outcome.WRONG),
        (0, "    while True: pass\n", Outcome.WRONG),
        (0, "return 1", Outcome.WRONG),
        (1, "    return half(x) / 2", Outcome.CORRECT),
        (1, "    return half(x)", Outcome.WRONG),
    ],
)
def test_a_completion_is_run_behind_its_prompt(own, which, text, outcome):
    made = task(metric="pass@1", timeout_s=1.5)
    assert _scores(made, [(own(made)[which], text)])[0].outcome is outcome


def test_a_chat_answer_is_run_as_its_last_block_that_defines_the_function(
    own,
):
    made = task(metric="pass@1", apply_chat_template=True)
    sample = own(made)[1]
    assert "in one code block" in str(sample.prompt)
    block = (
        "Sure:\n```python\nfrom __future__ import annotations\ndef quarter(x: T) -> T:\n    return"
        " half(x) / 2\n```\n"
    )
    asked = [
        block,
        block.replace("/ 2", "/ 3"),
        f"{block}Use it:\n```python\nquarter(1)\n```",
        "Like half, twice.",
    ]
    scores = _scores(made, [(sample, text) for text in asked])
    assert [score.outcome for score in scores] == [
        Outcome.CORRECT,
        Outcome.WRONG,
        Outcome.CORRECT,
        Outcome.UNPARSED,
    ]
    assert made.sampling.stop == ()


def test_rouge_asks_and_scores_as_the_suite_and_runs_nothing(
    own,
):
    pytest.importorskip("rouge_score")
    made = task()
    assert (made.program, made.sampling.max_tokens, made.sampling.stop) == (None, 100, ())
    assert (made.hypothesis.sigma, made.hypothesis.alpha, made.extra) == (
        15.08,
        0.002,
        {"truncate_prompt_tokens": 924},
    )
    first = own(made)[0]
    assert first.prompt == OWN[0]["prompt"].strip()
    assert made.score(
        first, Response(text="    return sum(0)", finish_reason="length")
    ).value == pytest.approx(4 / 15)


def test_pass_at_1_stops_where_the_paper_does_and_is_another_protocol():
    made = task(metric="pass@1")
    assert (made.sampling.max_tokens, made.sampling.stop) == (512, STOPS)
    assert made.reference_file != task().reference_file
    assert (made.protocol["metric"], task().protocol["metric"]) == ("pass@1", "rouge")


def test_what_makes_no_sense_is_refused(tmp_path, own):
    for options in ({"timeout_s": 0.0}, {"num_samples": 0}, {"apply_chat_template": True}):
        with pytest.raises(PlanError, match="humaneval"):
            task(**options)
    with pytest.raises(DatasetError, match="2 problems; 164 are needed"):
        task().load(DataRoots(roots=(tmp_path,)), 164)
    (tmp_path / "humaneval/test.jsonl").unlink()
    (tmp_path / "humaneval/HumanEval.jsonl.gz").write_bytes(b"not packed")
    with pytest.raises(DatasetError, match="not a gzip file"):
        task().load(DataRoots(roots=(tmp_path,)), 164)


def _published(shared, made):
    dataset = made.load(DataRoots(roots=(shared / "data",)), 164)
    assert (dataset.total, dataset.deviation) == (164, None)
    return dataset


def test_published_solutions_pass_and_broken_ones_fail(shared):
    made = task(metric="pass@1")
    chosen = random.Random(1).sample(list(_published(shared, made).samples), 5)
    right, wrong = zip(*(made.answers(sample) for sample in chosen), strict=True)
    asked = list(zip([*chosen, *chosen], [*right, *wrong], strict=True))
    assert [score.value for score in _scores(made, asked)] == [1.0] * 5 + [0.0] * 5


@pytest.mark.slow
@pytest.mark.parametrize("chat", [False, True])
def test_all_published_solutions_pass_and_fail_with_a_word_changed(shared, chat):
    made = task(metric="pass@1", apply_chat_template=chat)
    samples = _published(shared, made).samples
    right = [made.answers(sample)[0] for sample in samples]
    broken = []
    for sample, text in zip(samples, right, strict=True):
        solution = sample.metadata["solution"]
        broken.append(text.replace(solution, solution.replace("return ", "return not ")))
    for texts, outcome in ((right, Outcome.CORRECT), (broken, Outcome.WRONG)):
        scores = _scores(made, list(zip(samples, texts, strict=True)))
        assert [
            s.id for s, score in zip(samples, scores, strict=True) if score.outcome is not outcome
        ] == []


ADD = [("1 2\n", "3\n"), ("5 7\n", "12\n")]
JOIN = [("[1, 2]\n3", "[1, 2, 3]"), ("[]\n1", "[1]")]
READ = "a, b = map(int, input().split())\n"
METHOD = "class Solution:\n    def add(self, a, b=0):\n        "

SOLUTIONS = [
    (f"{READ}print(a + b)", ADD, True),
    (f"{READ}print(3)", ADD, False),
    (f"{READ}print('  ', float(a + b), '  ')\nprint()", ADD, True),
    (f"{READ}print(a + b)\nprint(1)", ADD, False),
    (f"def f():\n    {READ}    print(a + b)\nif __name__ == '__main__':\n    f()", ADD, True),
    ("import sys\na, b = map(int, sys.stdin.buffer.read().split())\nprint(a + b)", ADD, True),
    ("from sys import stdin\na, b = map(int, stdin.readline().split())\nprint(a + b)", ADD, True),
    ("import sys\nfor x in sys.stdin:\n    print(sum(map(int, x.split())))", ADD, False),
    (f"from sys import stdout\n{READ}stdout.write(str(a + b))", ADD, False),
    (f"{READ}print(a + b)\nexit(1)", ADD, True),
    (f"{READ}print(a + b)\nraise ValueError", ADD, False),
    (f"import resource\n{READ}print(a + b)", ADD, False),
    (f"class Solution:\n    pass\n{READ}print(a + b)", ADD, False),
    (f"{READ}heappush(h := [], a + b)\nprint(h[0])", ADD, True),
    ("n = 0\ndef f():\n    global n\n    n += 1\nf()", ADD, False),
    ("if input() == '5 7':\n    while True: pass\nprint(3)", ADD, False),
    (f"try:\n    while True: pass\nexcept Exception:\n    {READ}    print(a + b)", ADD, False),
    ("print(", ADD, False),
    (f"{METHOD}return a + [b]", JOIN, True),
    (f"{METHOD}return (*a, b)", JOIN, True),
    (f"{METHOD}return {{*a, b}}", JOIN, False),
    (f"{METHOD}print('log')\n        return Counter(a)", [('"aab"', '{"a": 2, "b": 1}')], True),
    (f"{METHOD}return 0.1 + 0.2", [("1", "0.3")], False),
    (f"{METHOD}exit()", JOIN, False),
    ("def add(a, b):\n    return a + [b]", JOIN, True),
    ("class Solution:\n    def sub(self, a, b):\n        return a + [b]", JOIN, False),
]
"""Solutions with the tests that they get, and whether the upstream says that all pass."""
SEEN = ("not NoneType", "No such file", "is decided by the program")
"""Errors of solutions that look for outputs, or decide comparisons."""
TEXTS = {
    "```python\na\n```": "a",
    "```python\na\n```\nand\n```\nb\n```\n": "b",
    "```python\na": None,
    "a": None,
    "```\n```": None,
    "```a```": None,
    "x ``` y\n c\nd ``` e": " c",
}


def _row(tests, name, number):
    cases = [{"input": a, "output": b, "testtype": "stdin"} for a, b in tests]
    row = contest_row(f"own{number}", 0)
    return {
        **row,
        "public_test_cases": json.dumps(cases[:1]),
        "private_test_cases": _pack(pickle.dumps(json.dumps(cases[1:]))),
        "metadata": json.dumps({} if name is None else {"func_name": name}),
    }


def _pack(content):
    return base64.b64encode(zlib.compress(content)).decode()


def _open(root, rows, **options):
    write_jsonl(root / "livecodebench/test.jsonl", rows)
    task = livecodebench.task(release_version="v1", num_samples=len(rows), **options)
    roots = DataRoots(roots=(root,), allow_fewer=True)
    return task, list(task.load(roots, len(rows)).samples)


def _run(task, asked):
    """Run answers in a sandbox, and return their scores and results."""

    async def run():
        sandbox, _ = await strongest()

        async def score(sample, text):
            response = Response(text=text, finish_reason="stop")
            program = task.program(sample, response)
            assert program is not None
            ran = await sandbox.run(program)
            return task.score(sample, msgspec.structs.replace(response, ran=ran)).value, ran

        return await asyncio.gather(*(score(sample, text) for sample, text in asked))

    return asyncio.run(run())


@pytest.fixture(scope="module")
def _sandboxed():
    """Skip where no program can run in isolation."""
    try:
        asyncio.run(strongest())
    except SandboxError as error:
        pytest.skip(str(error))


def _fence(code):
    return f"```python\n{code}\n```"


@pytest.mark.usefixtures("_sandboxed")
def test_solutions_pass_and_fail_as_in_the_upstream(tmp_path):
    rows = [
        _row(tests, None if tests is ADD else "add", i) for i, (_, tests, _) in enumerate(SOLUTIONS)
    ]
    task, samples = _open(tmp_path, rows, timeout_s=1)
    codes = [_fence(code) for code, _, _ in SOLUTIONS]
    found = _run(task, list(zip(samples, codes, strict=True)))
    for (code, _, passes), (value, ran) in zip(SOLUTIONS, found, strict=True):
        assert value == float(passes), f"{code}\n{ran}"


@pytest.mark.usefixtures("_sandboxed")
def test_a_solution_sees_no_expected_output_and_decides_no_comparison(tmp_path):
    """Each solution would pass if it found the row, or if its own class compared."""
    file = tmp_path / "livecodebench/test.jsonl"
    frames = (
        "import sys\nframe, row = sys._getframe(), None\nwhile frame and not row:\n"
        "    row, frame = frame.f_globals.get('GIVEN'), frame.f_back\n"
    )
    use = "import json\nprint(json.loads(json.loads(row)['public_test_cases'])[0]['output'])"
    equal = "class E:\n    def __eq__(self, other): return True\ndef add(a, b):\n    return E()"
    spies = [frames + use, f"row = open({str(file)!r}).readline()\n{use}", equal]
    rows = [_row(ADD[:1], None, 0), _row(ADD[:1], None, 1), _row(JOIN, "add", 2)]
    task, samples = _open(tmp_path, rows)
    found = _run(task, list(zip(samples, map(_fence, spies), strict=True)))
    assert [value for value, _ in found] == [0.0] * 3
    for (_, ran), told in zip(found, SEEN, strict=True):
        assert told in ran.stderr


@pytest.mark.usefixtures("_sandboxed")
def test_a_pickle_that_is_more_than_a_text_is_not_run(tmp_path):
    class Hostile:
        def __reduce__(self):
            return Path.touch, (tmp_path / "owned",)

    for content in (
        pickle.dumps(Hostile()),
        pickle.dumps(["a"]),
        pickle.dumps("a")[:-1],
        pickle.dumps("a") + b".",
        b"cos\nsystem\n(S'true'\ntR.",
        pickle.dumps(b"a"),
        b"\x80\x04.",
        b"",
    ):
        with pytest.raises(ValueError, match="pickle"):
            read_pickled_text(content)
    row = {**_row(ADD, None, 0), "private_test_cases": _pack(pickle.dumps(Hostile()))}
    task, samples = _open(tmp_path, [row])
    [(value, ran)] = _run(task, [(samples[0], _fence(f"{READ}print(a + b)"))])
    assert (value, "the pickle is not one text" in ran.stderr) == (0.0, True)
    assert not (tmp_path / "owned").exists()


@pytest.mark.usefixtures("_sandboxed")
@pytest.mark.parametrize("protocol", range(2, pickle.HIGHEST_PROTOCOL + 1))
@pytest.mark.parametrize("text", ["", "a", "é" * 200, "x" * 70_000, '"\ud800"'])
def test_a_pickled_text_is_read(text, protocol):
    assert read_pickled_text(pickle.dumps(text, protocol=protocol)) == text


@pytest.mark.usefixtures("_sandboxed")
def test_private_tests_are_json_or_packed():
    rows = [contest_row("a", i) for i in (0, 1)]
    assert [len(read_tests(row)) for row in rows] == [3, 3]
    packed = zlib.compress(pickle.dumps("[]"))[:-1]
    with pytest.raises(ValueError, match="incomplete"):
        read_tests({**rows[0], "private_test_cases": base64.b64encode(packed).decode()})


@pytest.mark.usefixtures("_sandboxed")
@pytest.mark.parametrize(
    ("said", "expected", "same"),
    [
        ("1 2", "1\n2", False),
        ("1.0  2e0 \n\n", "1 2", True),
        ("50000000000000000", "50000000000000001", False),
        ("0.1", "0.10000000000000001", False),
        ("yes", "Yes", False),
        ("a  b", "a b", False),
        ("nan", "NaN", False),
        ("inf", "Infinity", True),
        ("1_0", "10", True),
        ("1\r\n2\r\n", "1\n2\n", True),
        ("", "\n", True),
    ],
)
def test_outputs_are_compared_as_in_the_upstream(said, expected, same):
    assert is_same_output(said, expected) is same


@pytest.mark.usefixtures("_sandboxed")
@pytest.mark.parametrize("text", TEXTS)
def test_code_is_between_the_last_two_fences(text):
    assert livecodebench.extract_code(text) == TEXTS[text]


@pytest.mark.usefixtures("_sandboxed")
def test_a_program_may_use_as_much_memory_as_the_upstream_says(tmp_path):
    task, samples = _open(tmp_path, [_row(ADD, None, 0)])
    code = f"{READ}kept = bytearray(900 << 20)\nprint(a + b)"
    assert [value for value, _ in _run(task, [(samples[0], _fence(code))])] == [1.0]


@pytest.mark.usefixtures("_sandboxed")
def test_a_program_that_no_alarm_ends_is_ended_with_all_tests(tmp_path):
    code = "import signal\nsignal.signal(signal.SIGALRM, signal.SIG_IGN)\nwhile True: pass"
    task, samples = _open(tmp_path, [_row(ADD[:1], None, 0)], timeout_s=1)
    [(value, ran)] = _run(task, [(samples[0], _fence(code))])
    assert (value, ran.ended) == (0.0, ExitReason.RAISED)
    assert ran.stderr.endswith("all tests together took too long\n")


@pytest.mark.usefixtures("_sandboxed")
def test_tests_that_changed_after_loading_stop_the_run(tmp_path):
    task, samples = _open(tmp_path, [_row(ADD, None, 0)])
    write_jsonl(tmp_path / "livecodebench/test.jsonl", [_row(JOIN, "add", 0)])
    with pytest.raises(SandboxError, match="changed since they were loaded"):
        _run(task, [(samples[0], _fence("print(1)"))])


@pytest.mark.usefixtures("_sandboxed")
def test_options_choose_files_dates_and_platforms(tmp_path):
    write_livecodebench(tmp_path / "livecodebench", {"": 6, "2": 3})
    roots = DataRoots(roots=(tmp_path,), allow_fewer=True)

    def ids(**options):
        task = livecodebench.task(**{"release_version": "release_v2", **options})
        return [sample.id for sample in task.load(roots, 9).samples]

    first = [*(f"{p}-p1_{i}" for i, p in enumerate(("atcoder", "codeforces", "leetcode")))]
    assert ids()[:3] == first
    assert (len(ids()), len(ids(release_version="v1")), len(ids(release_version="v2"))) == (9, 6, 3)
    assert ids(platform="leetcode") == ["leetcode-p1_2", "leetcode-p1_5", "leetcode-p2_2"]
    # The contests of row 0 to 2 are on 2023-01-10, 2024-02-11 and 2025-03-12, at midnight.
    assert ids(end_date="2023-01-10") == ["atcoder-p1_0", "atcoder-p2_0"]
    assert "leetcode-p1_2" in ids(start_date="2025-03-12")
    assert "leetcode-p1_2" not in ids(start_date="2025-03-13")
    with pytest.raises(DatasetError, match="none of the 9 problems"):
        ids(start_date="2030-01-01")
    with pytest.raises(DatasetError, match=r"test3\.jsonl is missing"):
        ids(release_version="release_v3")
    with pytest.raises(PlanError, match="start_date must be a date such as 2024-08-01"):
        ids(start_date="2024-8")
