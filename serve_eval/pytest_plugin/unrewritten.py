"""Keep pytest from rewriting this package, whose asserts tell no user anything.

pytest rewrites each package that has a plug-in, and caches the result among its modules, in files
that pip does not remove: after uninstalling, an empty `serve_eval` could still be imported.
"""

from __future__ import annotations

import sys
from collections.abc import Container
from contextlib import suppress
from importlib.util import cache_from_source
from pathlib import Path

PACKAGE = __name__.partition(".")[0]


def leave_unrewritten(hook: object) -> None:
    """Unmark the package in pytest's import hook, and remove what was cached before.

    A pytest whose hook looks otherwise goes on rewriting.
    """
    marked, seen = (
        getattr(hook, name, None) for name in ("_must_rewrite", "_marked_for_rewrite_cache")
    )
    if not isinstance(marked, set) or not isinstance(seen, dict):
        return
    marked.difference_update([name for name in marked if _is_ours(str(name))])
    seen.clear()
    stems: dict[Path, set[str]] = {}
    for name, module in list(sys.modules.items()):
        if _is_ours(name) and (place := getattr(module, "__file__", None)):
            cached = Path(cache_from_source(str(place)))
            stems.setdefault(cached.parent, set()).add(cached.name.partition(".")[0])
    for folder, loaded in stems.items():
        _remove_caches(folder, loaded)


def _is_ours(name: str) -> bool:
    return name.partition(".")[0] == PACKAGE


def _remove_caches(folder: Path, stems: Container[str]) -> None:
    """Remove what pytest cached of these modules, reading their folder once."""
    with suppress(OSError):
        for file in folder.iterdir():
            stem, _, more = file.name.partition(".")
            if stem in stems and "-pytest-" in more and more.endswith(".pyc"):
                with suppress(OSError):  # another process was quicker, or the folder is read-only
                    file.unlink()
