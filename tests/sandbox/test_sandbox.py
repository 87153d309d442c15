"""Test the reported outcome of a program, and the decisions of the filter."""

import asyncio
import errno
import os
import platform
import re
import struct
from collections.abc import Callable
from pathlib import Path

import pytest

from serve_eval.errors import SandboxError
from serve_eval.sandbox.isolation import bubblewrap
from serve_eval.sandbox.probe import strongest
from serve_eval.sandbox.seccomp import (
    ABSENT,
    ALLOW,
    CLONE,
    FAIL,
    KILL,
    LAST,
    MMAP,
    PRLIMIT,
    REFUSED,
    SOCKET,
    build,
)
from serve_eval.schema import ExecutionResult, ExitReason, Program

Run = Callable[..., ExecutionResult]

ENDS = [
    ("both to their end", "def f(x): return x + 1", "assert f(1) == 2", ExitReason.PASSED),
    ("no checks", "x = 1", "", ExitReason.PASSED),
    (
        "a helper of the code in the checks",
        "def g(x): return x\ndef f(x): return x",
        "assert f(3) == g(3)",
        ExitReason.PASSED,
    ),
    (
        "a thread still at work",
        "import threading, time\nthreading.Thread(target=time.sleep, args=(60,)).start()",
        "",
        ExitReason.PASSED,
    ),
    ("a wrong result", "def f(x): return x", "assert f(1) == 2", ExitReason.RAISED),
    ("no such name", "", "assert f(1) == 2", ExitReason.RAISED),
    ("not Python", "def f(:", "", ExitReason.RAISED),
    ("not even text", "x = '\0'\ndef f(:\ud800", "", ExitReason.RAISED),
    ("an endless recursion", "def f(x): return f(x)", "f(1)", ExitReason.RAISED),
    ("sys.exit before the checks", "import sys; sys.exit(0)", "assert False", ExitReason.EXITED),
    (
        "sys.exit within them",
        "import sys\ndef f(x): sys.exit(0)",
        "f(1); assert False",
        ExitReason.EXITED,
    ),
    (
        "os._exit within them",
        "import os\ndef f(x): os._exit(0)",
        "f(1); assert False",
        ExitReason.EXITED,
    ),
    (
        "another program in its place",
        "import os; os.execv('/bin/true', ['true'])",
        "assert False",
        ExitReason.EXITED,
    ),
    (
        "a printed verdict",
        "print('passed')\ndef f(x): print('passed'); return 0",
        "assert f(1)",
        ExitReason.RAISED,
    ),
    (
        "a verdict to every descriptor",
        (
            "import os\nfor fd in range(1, 64):\n try: os.write(fd, b'passed')\n except OSError:"
            " pass\nos._exit(0)"
        ),
        "",
        ExitReason.EXITED,
    ),
    (
        "a search for the job",
        (
            "import os\nfor fd in range(64):\n try: found = open(f'/proc/1/fd/{fd}').read() if"
            " 'memfd' in os.readlink(f'/proc/1/fd/{fd}') else ''\n except OSError: continue\n"
            " assert not found\n"
        ),
        "",
        ExitReason.PASSED,
    ),
    ("a signal to itself", "import os; os.kill(os.getpid(), 9)", "", ExitReason.KILLED),
    ("abort", "import os; os.abort()", "", ExitReason.KILLED),
    (
        "assertions that are no errors",
        "import builtins; builtins.AssertionError = ValueError\ndef f(x): return 0",
        "try:\n assert f(1)\nexcept ValueError: pass",
        ExitReason.RAISED,
    ),
    (
        "builtins replaced",
        (
            "import builtins\nbuiltins.all = builtins.abs = lambda x: 1\nbuiltins.__build_class__ ="
            " None\ndef f(x): builtins.sum = lambda x: 9; return 0"
        ),
        "f(1)\nassert not all([0]) and abs(-2) == 2 and sum([1]) == 1\nassert f(1)",
        ExitReason.RAISED,
    ),
    (
        "builtins hidden by its own names",
        "def abs(x): return 0\nlen = abs",
        "assert abs(-3) == 3 and len('ab') == 2",
        ExitReason.PASSED,
    ),
    (
        "the way out replaced",
        "import os, sys\nos.write = os._exit = lambda *a: 1 / 0\nsys.stdout = None",
        "assert True",
        ExitReason.PASSED,
    ),
    (
        "everything behind the checks replaced",
        (
            "import builtins\nbuiltins.exec = builtins.compile = lambda *a, **k: None\ndef f(x):"
            " return 0"
        ),
        "assert f(1)",
        ExitReason.RAISED,
    ),
]


def test_how_a_program_ends_is_told_and_never_by_itself(
    isolated,
):
    async def all_of_them():
        return await asyncio.gather(
            *(isolated[0].run(Program(code=c, checks=t)) for _, c, t, _ in ENDS)
        )

    found = {name: ran for (name, *_), ran in zip(ENDS, asyncio.run(all_of_them()), strict=True)}
    assert {name: ran.ended for name, ran in found.items()} == {
        name: ended for name, _, _, ended in ENDS
    }
    assert found["a printed verdict"].stdout == "passed\npassed\n"
    assert found["sys.exit before the checks"].exit == 0
    assert found["abort"].exit == 128 + 6
    assert "RecursionError" in found["an endless recursion"].stderr


def test_a_program_has_its_input_and_its_time(run):
    assert run("print(input()[::-1])", stdin="abc\n").stdout == "cba\n"
    late = run(
        "import signal, time\nsignal.signal(signal.SIGTERM, lambda *a: 0)\nprint('so far',"
        " flush=True)\nwhile 1: pass",
        wall_s=1.0,
    )
    assert (late.ended, late.exit, late.stdout) == (ExitReason.TIMEOUT, None, "so far\n")


def test_as_root_another_user_runs_it_with_no_right(isolated):
    isolation = isolated[1]
    assert not isolation.network
    assert isolation.writable == ("/tmp",)
    assert (isolation.uid != os.getuid()) == (os.getuid() == 0)
    assert re.fullmatch(r"3\.\d+\.\d+", isolation.python)


def _as_it_is(command, readable, scratch):
    return list(command)


def _missing(command, readable, scratch):
    return ["/no/such/isolation", *command]


async def test_what_does_not_isolate_is_refused_with_what_the_probe_saw():
    with pytest.raises(SandboxError) as told:
        await strongest(isolations={"none": _as_it_is})
    assert "none with" in str(told.value)
    assert "it sees other processes" in str(told.value)
    assert "it sees /etc/passwd" in str(told.value)


@pytest.mark.parametrize(
    ("gap", "seen"),
    [
        (["--share-net"], "it reaches a network"),
        (["--bind", "/var/tmp", "/var/tmp"], "it can write to /var/tmp"),
        (["--ro-bind", "/etc", "/etc"], "it sees /etc/passwd"),
    ],
)
def test_a_gap_in_an_isolation_is_seen_by_the_probe(gap, seen):
    def with_gap(command, readable, scratch):
        first, *rest = bubblewrap([*command], readable, scratch)
        place = rest.index("--remount-ro")
        return [first, *rest[:place], *gap, *rest[place:]]

    try:
        asyncio.run(strongest(isolations={"bubblewrap": bubblewrap}))
    except SandboxError as error:
        pytest.skip(str(error))
    with pytest.raises(SandboxError, match=seen):
        asyncio.run(strongest(isolations={"gap": with_gap}))


async def test_no_isolation_is_refused_with_what_to_install():
    with pytest.raises(SandboxError) as told:
        await strongest(isolations={"missing": _missing})
    assert "apt-get install bubblewrap" in told.value.hint
    assert Path("/no/such/isolation").exists() is False


X86, ARM, ARCHES = "x86_64", "aarch64", {"x86_64": 0xC000003E, "aarch64": 0xC00000B7}
COLUMN = {X86: 0, ARM: 1}


def decided(machine, number, *args, arch=None):
    """Run the filter of a machine on one call.

    It uses only load, three jumps and return.
    """
    data = struct.pack(
        "<iIQ6Q",
        number,
        ARCHES[machine] if arch is None else arch,
        0,
        *(*args, *[0] * (6 - len(args))),
    )
    lines, at, held = list(struct.iter_unpack("=HBBI", build(machine))), 0, 0
    while True:
        code, if_so, if_not, operand = lines[at]
        at += 1
        if code == 0x20:
            (held,) = struct.unpack_from("<I", data, operand)
        elif code == 0x06:
            return int(operand)
        else:
            so = {0x15: held == operand, 0x25: held > operand, 0x45: bool(held & operand)}[code]
            at += if_so if so else if_not


@pytest.mark.parametrize("machine", [X86, ARM])
def test_what_is_named_is_refused_and_the_rest_is_not(machine):
    column = COLUMN[machine]
    refused = {numbers[column] for numbers in REFUSED.values()} - {None}
    absent = {numbers[column] for numbers in ABSENT.values()}
    special = {SOCKET[column], PRLIMIT[column], CLONE[column]}
    for number in range(LAST + 1):
        if number in refused:
            assert decided(machine, number) == FAIL | errno.EPERM, number
        elif number in absent:
            assert decided(machine, number) == FAIL | errno.ENOSYS, number
        elif number not in special and number not in (53, 199):
            assert decided(machine, number) == ALLOW, number
    assert {decided(machine, number) for number in range(LAST + 1, LAST + 99)} == {
        FAIL | errno.ENOSYS
    }


@pytest.mark.parametrize("machine", [X86, ARM])
def test_calls_are_told_apart_by_their_arguments(machine):
    column = COLUMN[machine]
    families = {
        family: decided(machine, SOCKET[column], family, 1, 0)
        for family in (1, 2, 10, 16, 17, 38, 40)
    }
    assert families == {1: ALLOW} | dict.fromkeys(
        (2, 10, 16, 17, 38, 40), FAIL | errno.EAFNOSUPPORT
    )
    assert decided(machine, CLONE[column], 17) == ALLOW
    for flag in range(25, 31):
        assert decided(machine, CLONE[column], 1 << flag | 17) == FAIL | errno.EPERM
    assert decided(machine, CLONE[column], 0x00020000 | 17) == FAIL | errno.EPERM
    pages = {
        flags: decided(machine, MMAP[column], 0, 4096, 3, flags)
        for flags in (0x22, 0x01, 0x02, 0x21, 0x23, 0x8021)
    }
    assert pages == {0x22: ALLOW, 0x01: ALLOW, 0x02: ALLOW} | dict.fromkeys(
        (0x21, 0x23, 0x8021), FAIL | errno.EPERM
    )
    assert (decided(machine, PRLIMIT[column], 0), decided(machine, PRLIMIT[column], 1)) == (
        ALLOW,
        FAIL | errno.EPERM,
    )


def test_numbers_of_another_machine_end_the_program():
    assert decided(X86, 20, arch=0x40000003) == KILL
    assert decided(ARM, 20, arch=0x40000028) == KILL
    assert decided(X86, 0x40000000 | 39) == KILL
    assert decided(X86, -1 & 0x7FFFFFFF) in (KILL, FAIL | errno.ENOSYS)


def test_a_machine_without_a_filter_runs_nothing():
    with pytest.raises(SandboxError, match="no filter of system calls for riscv64"):
        build("riscv64")


@pytest.mark.skipif(platform.machine() != X86, reason="compares with the headers of x86_64")
def test_the_numbers_are_those_of_the_headers():
    header = Path("/usr/include/x86_64-linux-gnu/asm/unistd_64.h")
    if not header.exists():
        pytest.skip("linux-libc-dev is not installed")
    told = dict(
        line.split()[1:3]
        for line in header.read_text().splitlines()
        if line.startswith("#define __NR_")
    )
    wrong = {
        name
        for name, (number, _) in {**REFUSED, **ABSENT}.items()
        if told.get(f"__NR_{name}", str(number)) != str(number)
    }
    assert wrong == set()
