"""Write pages at the very end of a command, which they never make fail.

Before a page is begun, the result is printed and every other file is complete.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from serve_eval.report.page.content import PageContent


def save_story_page(make: Callable[[], PageContent], path: Path) -> None:
    """Write the page of another story, and tell where it is."""
    from serve_eval.cli._streams import say

    def write() -> None:
        from serve_eval.report.page.writer import save_page

        save_page(make(), path, say)
        say(f"page: {path}")

    save(write)


def save(write: Callable[[], object]) -> None:
    """Write a page; if that fails, warn and go on, since the result is known."""
    from serve_eval.cli._streams import say
    from serve_eval.errors import ServeEvalError

    try:
        write()
    except KeyboardInterrupt:
        say("warning: the page was not written: interrupted")
    except ServeEvalError as error:
        say(f"warning: the page could not be written: {error}")
    except Exception as error:  # a page is made from texts of models, in any form
        say(f"warning: the page could not be written: {type(error).__name__}: {error}")
