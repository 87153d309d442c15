"""Write pages at the very end of a command, which they never make fail.

Before a page is begun, the result is printed and every other file is complete.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Sequence

    from serve_eval.report.page.content import PageContent
    from serve_eval.report.plots import Panel


def save_story_page(make: Callable[[], PageContent], path: Path) -> None:
    """Write the page of another story, and tell where it is."""
    from serve_eval.cli._streams import say

    def write() -> None:
        from serve_eval.report.page.writer import save_page

        save_page(make(), path, say)
        say(f"page: {path}")

    save(write)


def save_plot(make: Callable[[], Sequence[Panel]], file: Path, told: str) -> None:
    """Draw the file of --plot, and tell what it shows."""
    from serve_eval.cli._streams import say

    def write() -> None:
        from serve_eval.report.plots import draw

        draw(file, make())
        say(f"{told}: {file}")

    save(write, "the plot")


def save(write: Callable[[], object], what: str = "the page") -> None:
    """Write a page or a picture; if that fails, warn and go on, since the result is known."""
    from serve_eval.cli._streams import say
    from serve_eval.errors import ServeEvalError

    try:
        write()
    except KeyboardInterrupt:
        say(f"warning: {what} was not written: interrupted")
    except ServeEvalError as error:
        say(f"warning: {what} could not be written: {error}")
    except Exception as error:  # a page is made from texts of models, in any form
        say(f"warning: {what} could not be written: {type(error).__name__}: {error}")
