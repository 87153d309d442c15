"""Test what checks see of a program in another process.

Built-in values arrive whole, others as their parts.
"""

import asyncio
import struct

import pytest

from serve_eval.sandbox import Sandbox
from serve_eval.sandbox._reading import Reader, from_plain
from serve_eval.sandbox._values import RefusedValue, Writer, plain
from serve_eval.schema import ExitReason, Program

CODE = """
import collections, math
from typing import List, NamedTuple
class Poor(ValueError):
    def __init__(self, said, need): super().__init__(said); self.need = need
    def __str__(self): return f"{self.need} are needed"
class Poorer(Poor): pass
class Stack:
    def __init__(self, *xs): self.xs = list(xs)
    def push(self, x): self.xs.append(x); return self
    def pop(self): return self.xs.pop()
    def __len__(self): return len(self.xs)
    def __iter__(self): return iter(self.xs)
    def __getitem__(self, key): return self.xs[key]
    def __setitem__(self, key, x): self.xs[key] = x
    def fail(self): raise Poorer("said", 7)
    def __enter__(self): return self
    def __exit__(self, *raised): self.xs.append("left")
    @property
    def top(self): return self.xs[-1]
class P(NamedTuple):
    x: int
    y: int
noted = []
def note(x): noted.append(x)
def same(x): return x
def alike(xs, d): xs[:] = [True, 0.0, (1.0,)]; d.clear(); d[True] = 2
def sort(xs): xs.sort()
def nest(xs): xs[0].append(9); xs.append(xs[0])
def numbers(n):
    for i in range(n): yield i
def apply(f, *args, **names): return f(*args, **names)
def total(xs): return sum(xs)
async def later(x):
    import asyncio
    await asyncio.sleep(0)
    return x + 1
def counter(xs): return collections.Counter(xs)
def kind(x): return type(x)
"""
VALUES = """[0, -1, 2**70, -(2**4000), 1.5, float("inf"), -0.0, 1+2j, b"x", bytearray(b"y"), "\\ud800é", None,
    True, (1, [2]), {1: {2, 3}}, frozenset([1]), range(1, 9, 2), {"a": (None,)}, [], (), {}, set()]"""  # noqa: E501
SEEN = {
    "every kind of built-in": (
        (
            f"for x in {VALUES}:\n    y = same(x)\n    assert y == x and type(y) is type(x) and"
            " repr(y) == repr(x), x"
        ),
        ExitReason.PASSED,
    ),
    "standard values": (
        (
            "from collections import deque\nfrom datetime import date, datetime, timedelta,"
            " timezone\nfrom decimal import Decimal\nfrom fractions import Fraction\nfor x in"
            " Decimal('1.5'), Fraction(1, 3), date(2020, 1, 2), timedelta(1, 2), deque([1]):\n   "
            " assert same(x) == x\nfor x in [datetime(2020, 1, 2, tzinfo=timezone.utc)]:\n   "
            " assert same(x) == x"
        ),
        ExitReason.PASSED,
    ),
    "a changed argument": ("xs = [3, 1, 2]\nsort(xs)\nassert xs == [1, 2, 3]", ExitReason.PASSED),
    "one within another": (
        "x = [1]\nxs = [x]\nnest(xs)\nassert x == [1, 9] and xs[1] is x",
        ExitReason.PASSED,
    ),
    "a dict and a set while they are gone through": (
        (
            "d = {1: 1, 2: 2, 3: 3, 4: 4}\ndel d[1]\ns = set(range(0, 999, 7))\ns.discard(7)\nfor x"
            " in d, s:\n    seen = []\n    for key in x:\n        same(x)\n       "
            " seen.append(key)\n    assert seen == list(x) and len(set(seen)) == len(seen) =="
            " len(x), seen"
        ),
        ExitReason.PASSED,
    ),
    "what is in an argument that is not changed": (
        (
            "t, nan = (1, 2), float('nan')\nxs = [t, nan]\nsame(xs)\nassert xs[0] is t and xs[1]"
            " is nan"
        ),
        ExitReason.PASSED,
    ),
    "a change that equals": (
        (
            "xs, d = [1, -0.0, (1,)], {1: 2}\nalike(xs, d)\n"
            "assert repr(xs) == '[True, 0.0, (1.0,)]' and repr(d) == '{True: 2}'"
        ),
        ExitReason.PASSED,
    ),
    "calls of each other": (
        "def f(n): return n and apply(f, n - 1) + 1\nassert f(20) == 20",
        ExitReason.PASSED,
    ),
    "calls of each other without end": (
        "def f(n): return apply(f, n + 1)\nf(0)",
        ExitReason.RAISED,
    ),
    "slices": ("assert Stack(1, 2, 3)[1:] == [2, 3]", ExitReason.PASSED),
    "the argument itself": ("x = [1]\nassert same(x) is x", ExitReason.PASSED),
    "a list in itself": ("x = [1]\nx.append(x)\nassert same(x) is x", ExitReason.PASSED),
    "a list of the program": ("note(3)\nnote([1])\nassert noted == [3, [1]]", ExitReason.PASSED),
    "generators": (
        "assert list(numbers(3)) == [0, 1, 2] and 2 in numbers(4) and next(numbers(2)) == 0",
        ExitReason.PASSED,
    ),
    "functions of the checks": (
        "assert apply(lambda x, y: x * y, 4, y=3) == 12 and apply(max, [1, 5]) == 5",
        ExitReason.PASSED,
    ),
    "iterators of the checks": (
        "assert total(iter([1, 2])) == 3 and total(x for x in range(4)) == 6",
        ExitReason.PASSED,
    ),
    "coroutines": ("import asyncio\nassert asyncio.run(later(2)) == 3", ExitReason.PASSED),
    "own objects": (
        (
            "s = Stack(1)\ns.push(2).push([3])\nassert len(s) == 3 and s.pop() == [3] and list(s)"
            " == [1, 2] and s.top == 2\ns[0] = 5\nassert s.xs == [5, 2] and s and isinstance(s,"
            " Stack) and not isinstance(3, Stack)\nassert s == s and s != None\nwith s as t:\n   "
            " assert t is s\nassert s.top == 'left'"
        ),
        ExitReason.PASSED,
    ),
    "own tuples": (
        "assert same(P(1, 2)) == (1, 2) and counter('aab') == {'a': 2, 'b': 1}",
        ExitReason.PASSED,
    ),
    "own exceptions": (
        (
            "try:\n    Stack().fail()\nexcept Poor as e:\n    assert str(e) == '7 are needed' and"
            " e.need == 7\nelse:\n    assert False"
        ),
        ExitReason.PASSED,
    ),
    "their bases": ("try:\n    Stack().fail()\nexcept ValueError:\n    pass", ExitReason.PASSED),
    "exceptions of the checks": (
        (
            "class Mine(Exception): pass\ndef bad(): raise Mine(1, 2)\ntry:\n    apply(bad)\n"
            "except Mine as e:\n    assert e.args == (1, 2)"
        ),
        ExitReason.PASSED,
    ),
    "types": ("assert kind(3) is int and kind('') == str and kind([]) is list", ExitReason.PASSED),
    "modules": (
        "assert math.fabs(-2) == 2 and same.__name__ == 'same'\nxs: List[int] = [1]",
        ExitReason.PASSED,
    ),
    "names by their text": ("assert globals()['same'](3) == eval('same(3)')", ExitReason.PASSED),
    "== of own objects": ("assert Stack() == Stack()", ExitReason.RAISED),
    "< of own objects": ("assert not Stack() < 3", ExitReason.RAISED),
    "objects of the checks": ("class Q: pass\nsame(Q())", ExitReason.RAISED),
    "what nests without end": ("x = []\nfor _ in range(1500): x = [x]\nsame(x)", ExitReason.RAISED),
}


def test_checks_see_values_as_they_are(isolated):
    async def all_of_them():
        sandbox = Sandbox(isolated[0].wrap, isolated[0].interpreter, uid=isolated[0].uid, at_once=2)
        return list(
            await asyncio.gather(
                *(sandbox.run(Program(code=CODE, checks=one)) for one, _ in SEEN.values())
            )
        )

    found = dict(zip(SEEN, asyncio.run(all_of_them()), strict=True))
    assert {name: ran.ended for name, ran in found.items()} == {
        name: ended for name, (_, ended) in SEEN.items()
    }, [ran.stderr for name, ran in found.items() if ran.ended is not SEEN[name][1]]
    assert "compare its parts instead" in found["== of own objects"].stderr
    assert "built-ins, functions and iterators" in found["objects of the checks"].stderr


def test_a_failure_tells_the_line_of_the_program(run):
    ran = run("def f(x):\n    return [][x]\n", "f(1)")
    assert "IndexError: list index out of range\n  in the program, line 2, in f" in ran.stderr


def _read(message):
    def never(*told):
        raise RefusedValue("nothing of the kind is there")

    return Reader(message, stays=never, mine=never, error_class=never).read()


@pytest.mark.parametrize(
    "message",
    [
        b"",
        b"?",
        b"i",
        b"i\xff\xff\xff\xff",
        b"s" + struct.pack("<I", 2) + b"\xff\xff",
        b"[" + struct.pack("<I", 1 << 31),
        b"@" + struct.pack("<I", 0),
        b"t" + struct.pack("<I", 4) + b"exec",
        b"t" + struct.pack("<I", 4) + b"type",
        b"x" + struct.pack("<I", 9) + b"MagicMock" + b"N",
        b"O" + struct.pack("<I", 0) + b"NN",
        b"{" + struct.pack("<I", 2) + b"[" + struct.pack("<I", 0) + b"N",
        b"r" + struct.pack("<I", 1) + b"N",
        (b"(" + struct.pack("<I", 1)) * 900 + b"N",
    ],
)
def test_a_message_that_is_none_is_no_value(message):
    with pytest.raises((ValueError, KeyError, IndexError, TypeError)):
        _read(message)


def test_what_a_subclass_says_of_itself_does_not_cross():
    class Liar(int):
        def __eq__(self, other):
            return True

        def __hash__(self):
            return 0

        def __add__(self, other):
            return 99

    found = from_plain(plain([Liar(3)]))
    assert (found == [3], found == [4], type(found[0])) == (True, False, int)
    with pytest.raises(RefusedValue):
        plain(object())
    written = Writer(lambda value: (7, "object", "Thing"))
    written.write(object())
    assert bytes(written.out).startswith(b"O\x07\x00\x00\x00")
