"""Compile the code that runs in the sandbox, with the interpreter that runs it.

In the sandbox, this code does not import serve_eval.
"""

from __future__ import annotations

import json
import subprocess
from collections.abc import Sequence
from pathlib import Path

from serve_eval.errors import SandboxError
from serve_eval.sandbox import seccomp

MODULES = ("_values", "_reading", "_talk", "_program", "_checker", "_inside")
"""The modules in the order of their imports."""
FLAGS = ("-I", "-S", "-B", "-X", "utf8")
MOST_S = 30.0
START = """import marshal, os, sys
bundle, job, verdict, limits = sys.argv[1:]
modules, keyctl, lines = marshal.loads(os.pread(int(bundle), 1 << 24, 0))
for name, code in modules:
    module = sys.modules[name] = type(sys)(name)
    module.__builtins__ = dict(vars(__builtins__))
    exec(code, vars(module))
for name, code in modules:
    del sys.modules[name]
module.main(int(job), int(verdict), limits, keyctl, lines)
"""
"""The arguments are descriptors of the bundle, the job and the pipe for the token, followed by the
limits. The modules have their own builtins, so that a program that replaces builtins does not
affect them. Code is named in angle brackets: for any other name, Python would look for the
source in /tmp, where the program could place a link to the job."""
_COMPILE = """import json, marshal, sys
told = json.load(sys.stdin)
modules = [
    (name, compile(text, f"<{name}>", "exec", dont_inherit=True))
    for name, text in told["modules"]
]
sys.stdout.buffer.write(marshal.dumps((modules, told["keyctl"], bytes.fromhex(told["filter"]))))
"""


def build(command: Sequence[str]) -> bytes:
    """Return the bundle for an interpreter, which is the last word of a command line.

    Raises SandboxError if the interpreter cannot compile it, or for a machine without a filter.
    """
    texts = {
        f"serve_eval.sandbox.{name}": (Path(__file__).parent / f"{name}.py").read_text("utf-8")
        for name in MODULES
    }
    told = {
        "modules": [*texts.items()],
        "keyctl": seccomp.keyctl(),
        "filter": seccomp.build().hex(),
    }
    try:
        done = subprocess.run(  # noqa: S603  (an interpreter of this machine, with a text of ours)
            [*command, *FLAGS, "-c", _COMPILE],
            input=json.dumps(told).encode(),
            capture_output=True,
            timeout=MOST_S,
            check=True,
            cwd="/",
            env={"PATH": "/usr/sbin:/usr/bin:/sbin:/bin"},
        )
    except subprocess.CalledProcessError as error:
        said = error.stderr.decode(errors="replace").strip().rpartition("\n")[2]
        raise SandboxError(
            f"{command[-1]} cannot compile the code of the sandbox: {said[:300]}"
        ) from error
    except (OSError, subprocess.TimeoutExpired) as error:
        raise SandboxError(f"{command[-1]} cannot be run: {error}") from error
    return done.stdout
