"""Write down which files of the checkout a process opens, and where its modules came from.

Python imports this at its start, in every process that has this folder on PYTHONPATH. A line of the
log is `begun`, `opened FILE` or `module NAME FILE`.
"""

import atexit
import os
import sys

_LOG, _CHECKOUT = os.environ.get("TEST_WHEEL_LOG", ""), os.environ.get("TEST_WHEEL_CHECKOUT", "")


def _write(*words: object) -> None:
    with open(_LOG, "a") as log:  # noqa: PTH123 - pathlib would slow down each start
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


if _LOG and _CHECKOUT:
    _write("begun")
    sys.addaudithook(_watch)
    atexit.register(_list_modules)
