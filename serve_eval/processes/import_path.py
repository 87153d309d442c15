"""Take from the import path what is there only because of the current folder.

`python -m` and an empty or relative entry of PYTHONPATH put it there, before the standard library.
This module imports only what Python has built in: any other module could come from that folder.
"""

import os
import sys


def leave_out_current_folder() -> None:
    """Remove the current folder and relative entries of PYTHONPATH from the import path.

    A folder that PYTHONPATH names absolutely stays, and so does the one that serve_eval is in. The
    command line calls this once, before its other imports.
    """
    try:
        here = os.getcwd()  # noqa: PTH109 - pathlib would be imported from that folder
    except OSError:  # It was removed, so that nothing can come from it.
        return
    if not sys.flags.safe_path and sys.path[0] in ("", here) and here != ROOT:
        del sys.path[0]
    named = {one for one in list_named(os.environ) if os.path.isabs(one)}  # noqa: PTH117
    relative = {os.path.abspath(one) for one in list_named(os.environ)} - named - {ROOT}  # noqa: PTH100
    sys.path[:] = [place for place in sys.path if place not in relative]


def list_named(environ: "os._Environ[str] | dict[str, str]") -> list[str]:
    """Return the folders of PYTHONPATH as they stand there. An empty one is the current folder."""
    named = environ.get("PYTHONPATH", "")
    return named.split(os.pathsep) if named else []


ROOT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))  # noqa: PTH100, PTH120
"""The folder that serve_eval is in."""
