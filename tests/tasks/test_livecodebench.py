"""Test LiveCodeBench in the real sandbox.

The rows have the exact form of the upstream's files. Outcomes of solutions are those of the
upstream's own lcb_runner at commit 28fef95, on Python 3.11.
"""

import asyncio
import base64
import json
import pickle
import zlib
from pathlib import Path

import msgspec
import pytest

from serve_eval.errors import DatasetError, PlanError, SandboxError
from serve_eval.sandbox.probe import strongest
from serve_eval.schema import DataRoots, ExitReason, Response
from serve_eval.tasks import livecodebench
from serve_eval.tasks._livecodebench_checks import is_same_output, read_pickled_text, read_tests
from tests.tasks.made_data import contest_row, write_jsonl, write_livecodebench

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


@pytest.fixture(autouse=True, scope="module")
def _sandboxed():
    """Skip where no program can run in isolation."""
    try:
        asyncio.run(strongest())
    except SandboxError as error:
        pytest.skip(str(error))


def _fence(code):
    return f"```python\n{code}\n```"


def test_solutions_pass_and_fail_as_in_the_upstream(tmp_path):
    rows = [
        _row(tests, None if tests is ADD else "add", i) for i, (_, tests, _) in enumerate(SOLUTIONS)
    ]
    task, samples = _open(tmp_path, rows, timeout_s=1)
    codes = [_fence(code) for code, _, _ in SOLUTIONS]
    found = _run(task, list(zip(samples, codes, strict=True)))
    for (code, _, passes), (value, ran) in zip(SOLUTIONS, found, strict=True):
        assert value == float(passes), f"{code}\n{ran}"


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


@pytest.mark.parametrize("protocol", range(2, pickle.HIGHEST_PROTOCOL + 1))
@pytest.mark.parametrize("text", ["", "a", "é" * 200, "x" * 70_000, '"\ud800"'])
def test_a_pickled_text_is_read(text, protocol):
    assert read_pickled_text(pickle.dumps(text, protocol=protocol)) == text


def test_private_tests_are_json_or_packed():
    rows = [contest_row("a", i) for i in (0, 1)]
    assert [len(read_tests(row)) for row in rows] == [3, 3]
    packed = zlib.compress(pickle.dumps("[]"))[:-1]
    with pytest.raises(ValueError, match="incomplete"):
        read_tests({**rows[0], "private_test_cases": base64.b64encode(packed).decode()})


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


@pytest.mark.parametrize("text", TEXTS)
def test_code_is_between_the_last_two_fences(text):
    assert livecodebench.extract_code(text) == TEXTS[text]


def test_a_program_may_use_as_much_memory_as_the_upstream_says(tmp_path):
    task, samples = _open(tmp_path, [_row(ADD, None, 0)])
    code = f"{READ}kept = bytearray(900 << 20)\nprint(a + b)"
    assert [value for value, _ in _run(task, [(samples[0], _fence(code))])] == [1.0]


def test_a_program_that_no_alarm_ends_is_ended_with_all_tests(tmp_path):
    code = "import signal\nsignal.signal(signal.SIGALRM, signal.SIG_IGN)\nwhile True: pass"
    task, samples = _open(tmp_path, [_row(ADD[:1], None, 0)], timeout_s=1)
    [(value, ran)] = _run(task, [(samples[0], _fence(code))])
    assert (value, ran.ended) == (0.0, ExitReason.RAISED)
    assert ran.stderr.endswith("all tests together took too long\n")


def test_tests_that_changed_after_loading_stop_the_run(tmp_path):
    task, samples = _open(tmp_path, [_row(ADD, None, 0)])
    write_jsonl(tmp_path / "livecodebench/test.jsonl", [_row(JOIN, "add", 0)])
    with pytest.raises(SandboxError, match="changed since they were loaded"):
        _run(task, [(samples[0], _fence("print(1)"))])


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
