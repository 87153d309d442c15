"""Write down which files of the checkout a process opens, and where its modules came from.

Python imports this at its start, in every process that has this folder on PYTHONPATH. A line of the
log is `begun`, `opened FILE` or `module NAME FILE`. The paths of the log and of the checkout are in
a file next to this one: variables of ours would not reach the servers that serve-eval starts.
"""

import atexit
import os
import sys

with open(__file__.replace("sitecustomize.py", "paths")) as _paths:  # noqa: PTH123 - slower starts
    _LOG, _CHECKOUT = _paths.read().splitlines()


def _write(*words: object) -> None:
    with open(_LOG, "a") as log:  # noqa: PTH123
        log.write(" ".join(map(str, words)) + "\n")


def _watch(event: str, arguments: tuple[object, ...]) -> None:
    if event == "open" and isinstance(arguments[0], str):
        file = arguments[0]
        if file != _LOG and (file + os.sep).startswith(_CHECKOUT + os.sep):
            _write("opened", file)


def _list_modules() -> None:
    for name, module in list(sys.modules.items()):
        file = getattr(module, "__file__", None)
        ours = name.partition(".")[0] == "serve_eval"
        if file and (ours or file.startswith(_CHECKOUT + os.sep)):
            _write("module", name, file)


_write("begun")
sys.addaudithook(_watch)
atexit.register(_list_modules)
