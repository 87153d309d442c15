"""Start the program and its checker in the sandbox, as the first code of the interpreter.

This process is the first of its namespaces, so no signal from within can end it. It isolates itself
further, starts the program as its child, and is then the checker.

The isolation is a session keyring of its own, the system call filter and the limits. No other
process in the sandbox can read the memory or descriptors of this process. Only it knows the checks
and the token that reports that they passed.

The checker runs the checks on the values of the program. A value that is not a built-in is
represented by a stand-in. The stand-in asks the program for its parts. It never passes an operation
that would reveal the expected value (==, <, in, arithmetic) to the program, which could return any
result.
"""

from __future__ import annotations

import _signal as signal  # type: ignore[import-not-found]  # the module around it takes time to import
import builtins
import ctypes
import os
import resource
import sys

from serve_eval.sandbox._program import RunningProgram
from serve_eval.sandbox._reading import from_plain
from serve_eval.sandbox._talk import STANDARD_MODULES, TalkSide, build_refusal

TYPE_CHECKING = False  # typing takes time to import
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any

SEARCHING = {"eval", "exec", "globals", "locals", "vars"}
"""Names of functions that give checks access to any name."""


class _Own:
    """A value of the program that is not a built-in."""

    def __init__(self, side: TalkSide, number: int, name: str) -> None:
        vars(self).update(_side=side, _number=number, _name=name)

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__") and name != "__name__":
            raise AttributeError(name)
        return self._ask("attribute", name)

    def __setattr__(self, name: str, value: Any) -> None:
        self._ask("assign", name, value)

    def _ask(self, operation: str, *args: Any) -> Any:
        return vars(self)["_side"].ask(operation, vars(self)["_number"], args)

    def __eq__(self, other: object) -> bool:
        if self is other:
            return True
        if other is None:
            return False
        raise TypeError(
            f"== of the program's own class {vars(self)['_name']} is decided by the program: "
            "compare its parts instead"
        )

    def __hash__(self) -> int:
        return id(self)

    def __getitem__(self, key: Any) -> Any:
        return self._ask("item", key)

    def __setitem__(self, key: Any, value: Any) -> None:
        self._ask("put", key, value)

    def __delitem__(self, key: Any) -> None:
        self._ask("drop", key)

    def __len__(self) -> Any:
        return self._ask("length")

    def __iter__(self) -> Any:
        return self._ask("iterate")

    def __next__(self) -> Any:
        return self._ask("next")

    def __str__(self) -> Any:
        return self._ask("text")

    def __repr__(self) -> Any:
        return self._ask("shown")

    def __bool__(self) -> Any:
        return self._ask("true")

    def __int__(self) -> Any:
        return self._ask("whole")

    def __float__(self) -> Any:
        return self._ask("number")

    def __index__(self) -> Any:
        return self._ask("index")

    def __enter__(self) -> Any:
        return self._ask("enter")

    def __exit__(self, *raised: Any) -> None:
        self._ask("leave")


class _OwnCallable(_Own):
    """A function or class of the program."""

    def __call__(self, *args: Any, **names: Any) -> Any:
        return vars(self)["_side"].ask("call", vars(self)["_number"], args, names)

    def __instancecheck__(self, other: Any) -> Any:
        return isinstance(other, _Own) and self._ask("instance", other)


class Checker(TalkSide):
    """Send requests to the program, and let it call the functions that it received."""

    def __init__(self, source: int, sink: int, gone: Callable[[], None]) -> None:
        super().__init__(source, sink)
        self._gone = gone
        self._stand_ins: dict[int, Any] = {}

    def kind(self, value: Any) -> str:
        if isinstance(value, type) and issubclass(value, BaseException):
            return "class"
        if getattr(builtins, getattr(value, "__name__", ""), None) is value:
            return "builtin"
        if callable(value):
            return "callable"
        if hasattr(value, "__next__"):
            return "iterator"
        raise build_refusal(value)

    def number(self, value: Any) -> int | None:
        if isinstance(value, _Own):
            return vars(value)["_number"]  # type: ignore[no-any-return]
        return None

    def stand_in(self, number: int, kind: str, name: str) -> Any:
        if number not in self._stand_ins:
            made: Any = (_OwnCallable if kind == "callable" else _Own)(self, number, name)
            self._stand_ins[number] = self._coroutine(number) if kind == "coroutine" else made
            if kind == "module":
                vars(made)["_module"] = name
        return self._stand_ins[number]

    async def _coroutine(self, number: int) -> Any:
        return self.ask("wait", number)

    def perform(
        self, operation: str, thing: Any, args: tuple[Any, ...], names: dict[str, Any]
    ) -> Any:
        if operation == "next":
            return next(thing)
        if operation == "call":
            return thing(*args, **names)
        raise ValueError("the program requests an operation that is not allowed")

    def receive(self) -> bytes:
        try:
            return super().receive()
        except BaseException:
            self._gone()
            raise

    def check(self, checks: str, given: bytes = b"") -> None:
        """Run the checks with the names that the program defined, and GIVEN.

        Raises their exceptions.
        """
        compiled = compile(checks, "<checks>", "exec", dont_inherit=True)
        named = _names(compiled)
        wanted = (
            None
            if not named.isdisjoint(SEARCHING)
            else {name for name in named if not _is_taken(name)}
        )
        own = self.ask("names", 0, (wanted and list(wanted),)) if wanted != set() else {}
        space: dict[str, Any] = {"__name__": "program"}
        for name, value in own.items():
            # A name that the checks did not ask for could replace a built-in.
            if type(name) is str and not _is_taken(name) and (wanted is None or name in wanted):
                space[name] = _module(name, value)
        if given:
            space["GIVEN"] = given
        exec(compiled, space)  # noqa: S102  (the purpose of this process)


def _is_taken(name: str) -> bool:
    return name.startswith("__") or hasattr(builtins, name)


def _names(code: Any) -> set[str]:
    """Return the names that a code object, including its nested code objects, refers to."""
    inner = [_names(constant) for constant in code.co_consts if isinstance(constant, type(code))]
    return set(code.co_names).union(*inner)


def _module(name: str, value: Any) -> Any:
    """Return this process's own module for a standard library module, else the value itself."""
    if isinstance(value, _Own) and vars(value).get("_module") == name and name in STANDARD_MODULES:
        return __import__(name)
    return value


JOIN_SESSION_KEYRING = 1
SET_DUMPABLE, SET_SECCOMP, SET_NO_NEW_PRIVS = 4, 22, 38
NO_KEYRINGS = (1, 38)
"""EPERM and ENOSYS: this process may not use keyctl, or the kernel does not have it. Then neither
can the program."""


class _Filter(ctypes.Structure):
    _fields_ = (("length", ctypes.c_ushort), ("lines", ctypes.c_char_p))


def main(job: int, verdict: int, limits: str, keyctl: int, lines: bytes) -> None:
    """Run a job to its end."""
    libc = ctypes.CDLL(None, use_errno=True)
    if (
        libc.syscall(ctypes.c_long(keyctl), JOIN_SESSION_KEYRING, None) < 0
        and ctypes.get_errno() not in NO_KEYRINGS
    ):
        raise OSError(ctypes.get_errno(), "cannot create a session keyring")
    _prctl(libc, SET_NO_NEW_PRIVS, 1)
    _prctl(libc, SET_SECCOMP, 2, ctypes.byref(_Filter(len(lines) // 8, lines)))
    _prctl(libc, SET_DUMPABLE, 0)
    for limit in limits.split(","):
        name, most = limit.split(":")
        resource.setrlimit(getattr(resource, f"RLIMIT_{name}"), (int(most), int(most)))
    os.environ.clear()
    asked, asks = os.pipe()
    answered, answers = os.pipe()
    program = os.fork()
    if program == 0:
        _only(libc, {asked, answers})
        side = RunningProgram(asked, answers)
        side.serve(side.receive().decode("utf-8", "surrogatepass"))
        return
    os.close(asked)
    os.close(answers)
    _check(program, answered, asks, job, verdict)


def _check(program: int, source: int, sink: int, job: int, verdict: int) -> None:
    def end(status: int) -> None:
        os._exit(128 + os.WTERMSIG(status) if os.WIFSIGNALED(status) else os.WEXITSTATUS(status))

    def reap(*told: Any) -> None:
        """Reap children, and exit with the program's status when the program ends.

        Orphans of the sandbox become children of its first process.
        """
        while True:
            try:
                pid, status = os.waitpid(-1, os.WNOHANG)
            except ChildProcessError:
                return
            if pid == program:
                end(status)
            if pid == 0:
                return

    def note_closed() -> None:
        """Wait for the program, which has closed its pipe, and exit with its status."""
        end(os.waitpid(program, 0)[1])

    signal.signal(signal.SIGINT, signal.SIG_DFL)
    signal.signal(signal.SIGCHLD, reap)
    told = from_plain(os.pread(job, os.fstat(job).st_size, 0))
    os.close(job)
    checker = Checker(source, sink, note_closed)
    checker.send(told["code"].encode("utf-8", "surrogatepass"))
    checker.receive()
    if told["checks"]:
        checker.check(told["checks"], told["given"])
    sys.stdout.flush()
    os.write(verdict, told["token"].encode())
    os._exit(0)


def _only(libc: Any, kept: set[int]) -> None:
    """Close all descriptors of the checker that the program must not have."""
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    last = 2
    for descriptor in sorted(kept):
        os.closerange(last + 1, descriptor)
        last = descriptor
    os.closerange(last + 1, resource.getrlimit(resource.RLIMIT_NOFILE)[1])
    _prctl(libc, SET_DUMPABLE, 1)


def _prctl(libc: Any, option: int, value: int, more: Any = 0) -> None:
    if libc.prctl(option, ctypes.c_ulong(value), more, 0, 0) != 0:
        raise OSError(ctypes.get_errno(), f"prctl {option}")
