"""Test the filter's decisions on both machines by running it as the kernel does."""

from __future__ import annotations

import errno
import platform
import struct
from pathlib import Path

import pytest

from serve_eval.errors import SandboxError
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

X86, ARM, ARCHES = "x86_64", "aarch64", {"x86_64": 0xC000003E, "aarch64": 0xC00000B7}
COLUMN = {X86: 0, ARM: 1}


def decided(machine: str, number: int, *args: int, arch: int | None = None) -> int:
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
def test_what_is_named_is_refused_and_the_rest_is_not(machine: str) -> None:
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
def test_calls_are_told_apart_by_their_arguments(machine: str) -> None:
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


def test_numbers_of_another_machine_end_the_program() -> None:
    assert decided(X86, 20, arch=0x40000003) == KILL
    assert decided(ARM, 20, arch=0x40000028) == KILL
    assert decided(X86, 0x40000000 | 39) == KILL
    assert decided(X86, -1 & 0x7FFFFFFF) in (KILL, FAIL | errno.ENOSYS)


def test_a_machine_without_a_filter_runs_nothing() -> None:
    with pytest.raises(SandboxError, match="no filter of system calls for riscv64"):
        build("riscv64")


@pytest.mark.skipif(platform.machine() != X86, reason="compares with the headers of x86_64")
def test_the_numbers_are_those_of_the_headers() -> None:
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
