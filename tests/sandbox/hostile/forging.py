"""Try to forge a verdict.

The checks of each program are false, and ask for a word that it cannot know.
"""

from tests.sandbox.hostile.run import Attempt

WORD = "SECRET"
IS_WORD = f"assert f(1) == {WORD!r}"
ASSERTION = "raised AssertionError"
REFUSED = "raised TypeError"
_ANYTHING = """class Anything{base}:
    def __eq__(self, other): return True
    __ne__ = __lt__ = __le__ = __gt__ = __ge__ = lambda self, other: not 0
    def __ne__(self, other): return False
    def __hash__(self): return hash({word!r})
    def __contains__(self, other): return True
    def __sub__(self, other): return 0
    __rsub__ = __add__ = __radd__ = __mul__ = __abs__ = __mod__ = lambda self, *other: 0
    def __bool__(self): return True
    def __instancecheck__(self, other): return True
    __class__ = {kind}
"""


def _anything(name, base, made, kind, checks=IS_WORD, by=""):
    code = (
        _ANYTHING.format(base=f"({base})" if base else "", word="x", kind=kind)
        .replace("{", "{{")
        .replace("}", "}}")
    )
    return Attempt(
        name=name,
        tries=f"to give back {base or 'an object'} that equals everything",
        code=f"{code}def f(x): return {made}\n",
        checks=checks,
        by=by or ASSERTION,
    )


SEND = """
import struct
def pipes():
    import fcntl
    open_here = [int(fd) for fd in os.listdir('/proc/self/fd') if os.path.exists(f'/proc/self/fd/{{fd}}')]
    return [fd for fd in open_here if fd > 2 and fcntl.fcntl(fd, fcntl.F_GETFL) & 3 == os.O_WRONLY]
def send(message):
    for fd in pipes(): os.write(fd, struct.pack('<Q', len(message)) + message)
"""  # noqa: E501
"""Code that sends messages to the checker, past the part that answers for the program."""
FORGING = [
    _anything("equal-object", "", "Anything()", "str", by=REFUSED),
    _anything("equal-text", "str", "Anything('a')", "str"),
    _anything("equal-number", "int", "Anything(3)", "int", "assert f(1) == 4"),
    _anything("equal-list", "list", "Anything([1])", "list", "assert f(1) == [2]", by=REFUSED),
    _anything("contains-all", "", "Anything()", "list", "assert 4 in f(1)", by=REFUSED),
    _anything(
        "nearly-equal", "", "Anything()", "float", "assert abs(f(1) - 4.0) < 1e-6", by=REFUSED
    ),
    _anything("smaller", "", "Anything()", "float", "assert f(1) < 4 and 4 < f(1)", by=REFUSED),
    _anything("within", "", "[Anything()]", "str", "assert f(1) == [4]", by=REFUSED),
    _anything("key", "str", "{{Anything('a'): 1}}", "str", "assert f(1) == {'b': 1}"),
    Attempt(
        name="frames",
        tries="to find the verdict's word or the checks in the frames above it",
        code=(
            "def f(x):\n    frame = sys._getframe()\n    while frame:\n        for name, value in"
            " list(frame.f_locals.items()) + list(frame.f_globals.items()):\n            if"
            " isinstance(value, (str, bytes)) and 'assert' in str(value): print(value)\n           "
            " if name in ('token', 'told', 'checks'): print(value)\n        frame = frame.f_back\n"
        ),
        checks=IS_WORD,
        by=ASSERTION,
    ),
    Attempt(
        name="objects",
        tries="to find the checks among all objects",
        code=(
            "def f(x):\n    import gc\n    for one in gc.get_objects():\n"
            "        if isinstance(one, dict) and ('token' in one or 'checks' in one): print(one)\n"
        ),
        checks=IS_WORD,
        by=ASSERTION,
    ),
    Attempt(
        name="memory",
        tries="to find the checks in its own memory",
        code=(
            "def f(x):\n    wanted = bytes([97, 115, 115, 101, 114, 116, 32, 102, 40, 49])\n   "
            " with open('/proc/self/mem', 'rb', 0) as memory:\n        for line in"
            " open('/proc/self/maps'):\n            start, end = (int(one, 16) for one in"
            " line.split()[0].split('-'))\n            if ' rw' not in line or end - start > 1 <<"
            " 24: continue\n            memory.seek(start)\n            piece = memory.read(end -"
            " start)\n            for found in piece.split(wanted)[1:]: print(found[:60])\n"
        ),
        checks=IS_WORD,
        by=ASSERTION,
    ),
    Attempt(
        name="builtins",
        tries="to replace what the checks use",
        code=(
            "import builtins\nbuiltins.AssertionError = builtins.Exception = type('E',"
            " (BaseException,), {{}})\nbuiltins.all = builtins.any = builtins.isinstance ="
            " builtins.len = lambda *a: True\nbuiltins.exec = builtins.compile = lambda *a, **k:"
            " None\nbuiltins.__build_class__ = None\ndef f(x): return [0]"
        ),
        checks="assert all(f(1)) and len(f(1)) == 2",
        by=ASSERTION,
    ),
    Attempt(
        name="modules",
        tries="to replace modules that the checks use",
        code=(
            "import math, random\nmath.isclose = math.fabs = lambda *a, **k:"
            " True\nsys.modules['math'] = math\nopen('/tmp/math.py', 'w').write('isclose = lambda"
            " *a, **k: True')\nsys.path.insert(0, '/tmp')\ndef f(x): return 1.0"
        ),
        checks="import math\nassert math.isclose(f(1), 2.0)",
        by=ASSERTION,
    ),
    Attempt(
        name="own-names",
        tries="to name its own functions as the checks' built-ins",
        code=(
            "abs = all = len = str = isinstance = lambda *a: True\nAssertionError ="
            " KeyError\n__builtins__ = {{}}\ndef f(x): return 0"
        ),
        checks="assert eval('all([f(1)])') and abs(f(1)) == 2",
        by=ASSERTION,
    ),
    Attempt(
        name="exit",
        tries="to end well before the checks",
        code="import atexit\natexit.register(lambda: os._exit(0))\nsys.exit(0)",
        checks=IS_WORD,
        by="exited 0",
    ),
    Attempt(
        name="exit-within",
        tries="to end well within the checks",
        code="def f(x): os._exit(0)",
        checks=IS_WORD,
        by="exited 0",
    ),
    Attempt(
        name="quiet-exit",
        tries="to end within the checks that catch everything",
        code="def f(x): sys.exit(0)",
        checks=f"try:\n    f(1)\nexcept ValueError:\n    pass\n{IS_WORD}",
        by="exited 0",
    ),
    Attempt(
        name="another-in-place",
        tries="to put another program in its place",
        code="os.execv('/bin/true', ['true'])",
        checks=IS_WORD,
        by="exited 0",
    ),
    Attempt(
        name="descriptors-written",
        tries="to write a verdict to every descriptor",
        code=(
            "def f(x):\n    for fd in range(3, 64):\n        for text in b'passed', b'A' * 32,"
            " bytes(32):\n            try: os.write(fd, text)\n            except OSError: pass\n  "
            "  time.sleep(20)"
        ),
        checks=IS_WORD,
        by="raised|timeout|killed|exited",
        wall_s=1.0,
    ),
    Attempt(
        name="own-answers",
        tries="to speak to the checker in its own words, and to say yes to all",
        code=(
            "import struct\npipes = [fd for fd in range(3, 64) if"
            " os.path.exists(f'/proc/self/fd/{{fd}}')]\nyes = b'AT' + b's' + bytes(4)\nmade ="
            " b''.join(struct.pack('<Q', len(m)) + m for m in [b'A'] + [yes] * 50)\nfor fd in"
            " pipes:\n    try: os.write(fd, made)\n    except OSError: pass\ntime.sleep(20)"
        ),
        checks=IS_WORD,
        by="raised|timeout|exited",
        wall_s=1.0,
    ),
    Attempt(
        name="odd-message",
        tries="to crash or to mislead what reads its answers",
        code=(
            "import struct\nbad = b'Ax' + struct.pack('<I', 9) + b'Anything!' + b'N' * 9\ndef"
            " f(x):\n    for fd in range(3, 64):\n        try: os.write(fd, struct.pack('<Q',"
            " len(bad)) + bad)\n        except OSError: pass\n    return 1"
        ),
        checks=IS_WORD,
        by="raised KeyError",
    ),
    Attempt(
        name="deep-message",
        tries="to have its answer nest a million deep",
        code=SEND
        + "def f(x):\n    send(b'A' + b'(\\1\\0\\0\\0' * 1000000 + b'N')\n    time.sleep(20)",
        checks=IS_WORD,
        by="raised ValueError",
    ),
    Attempt(
        name="list-as-key",
        tries="to answer with a dict whose key is a list",
        code=SEND
        + "def f(x):\n    send(b'A{{' + struct.pack('<I', 2) + b'[' + bytes(4) + b'N' + b's' +"
        " bytes(4))\n    time.sleep(20)",
        checks=IS_WORD,
        by="raised TypeError",
    ),
    Attempt(
        name="endless-message",
        tries="to announce a message of 2**63 bytes and to send little of it",
        code=SEND
        + "def f(x):\n    for fd in pipes(): os.write(fd, struct.pack('<Q', 1 << 63) + b'A')\n"
        "    time.sleep(20)",
        checks=IS_WORD,
        by="timeout",
        wall_s=1.0,
    ),
    Attempt(
        name="answer-before",
        tries="to answer what has not been asked yet",
        code=SEND + "def f(x):\n    send(b'AT' + b's' + bytes(4))\n    return False",
        checks="assert f(1) and not f(1) and False",
        by="raised ValueError",
    ),
    Attempt(
        name="heir",
        tries="to leave its child behind, which goes on answering",
        code=SEND
        + "def f(x):\n    if os.fork() == 0:\n        time.sleep(0.3)\n        send(b'AT' + b's' +"
        " bytes(4))\n        time.sleep(5)\n    os._exit(0)",
        checks="assert f(1) and False",
        by="exited 0",
    ),
    Attempt(
        name="stop",
        tries="to stop itself, its checker and all others",
        code=(
            "def f(x):\n    for pid in 1, -1, 0:\n        try: os.kill(pid, 19)\n        except"
            " OSError: pass\n"
        ),
        checks=IS_WORD,
        by="timeout",
        wall_s=1.0,
    ),
    Attempt(
        name="parts-of-fraction",
        tries="to give back a Fraction whose parts are objects of its own",
        code=(
            "from fractions import Fraction\nclass Equal: __eq__ = lambda self, other: True\ndef"
            " f(x):\n    found = Fraction(1, 2)\n    found._numerator = Equal()\n    return found"
        ),
        checks="from fractions import Fraction\nassert f(1) == Fraction(4)",
        by="raised ValueError",
    ),
    Attempt(
        name="ends-raised",
        tries="to raise what ends its checker well",
        code="def f(x): raise SystemExit(0)",
        checks=IS_WORD,
        by="exited 0",
    ),
    Attempt(
        name="pipes-as-source",
        tries="to have its checker wait for the source of a traceback",
        code=(
            "for name in 'checks', '<checks>', '<string>', '<serve_eval.sandbox._inside>':\n"
            "    os.mkfifo(f'/tmp/{{name}}')\ndef f(x): return 0"
        ),
        checks=IS_WORD,
        by=ASSERTION,
    ),
    Attempt(
        name="tracing",
        tries="to trace and to profile what runs behind it",
        code=(
            "def look(frame, event, arg):\n    for name, value in list(frame.f_locals.items()):\n  "
            "      if isinstance(value, (str, bytes)) and 'assert f' in str(value): print(value)\n "
            "   return look\nsys.setprofile(look)\nsys.settrace(look)\ndef f(x): return 1"
        ),
        checks=IS_WORD,
        by=ASSERTION,
    ),
    Attempt(
        name="threads-after",
        tries="to change its answer after it gave it",
        code=(
            "import threading\nanswer = []\ndef later():\n"
            "    for _ in range(200000): answer[:] = [4]; answer[:] = [3]\n"
            "def f(x):\n    threading.Thread(target=later, daemon=True).start()\n    return answer"
        ),
        checks="a = f(1)\nfor _ in range(1000):\n    assert a == [5]",
        by=ASSERTION,
    ),
    Attempt(
        name="signals-to-checker",
        tries="to disturb its checker by every signal",
        code=(
            "def f(x):\n    for number in range(1, 65):\n        try: os.kill(1, number)\n"
            "        except OSError: pass\n    return 1"
        ),
        checks=IS_WORD,
        by=ASSERTION,
    ),
    Attempt(
        name="odd-exception",
        tries="to raise what the checks' own handling takes for theirs",
        code=(
            "class E(Exception):\n    __eq__ = lambda self, other: True\n    __class__ ="
            " AssertionError\n    args = property(lambda self: 1 / 0)\n    def __str__(self): raise"
            " self\n    __notes__ = 5\ndef f(x): raise E(f, E)"
        ),
        checks="try:\n    f(1)\nexcept ValueError:\n    pass\nelse:\n    assert False",
        by="raised ZeroDivisionError",
    ),
    Attempt(
        name="asked-back",
        tries="to reach the checker through a function that the checks gave it",
        code=(
            "def f(g):\n    for name in '__globals__', '__code__', '__closure__', '__self__':\n"
            "        if hasattr(g, name): out(name)\n"
            "    try: g._side.ask('attribute', g._number, ('__globals__',))\n"
            "    except Exception as error: print(error)\n"
            "    return 1"
        ),
        checks=f"assert f(lambda: 1) == {WORD!r}",
        by=ASSERTION,
    ),
]
