"""Write pages at the end of a command, which they never make fail."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Sequence

    from serve_eval.report.page.content import PageContent
    from serve_eval.schema import Comparison, Report


def save_run_page(report: Report, out_dir: Path, slices: Sequence[str]) -> None:
    """Write the page of a run. `slices` are sentences about where a red run lost its score."""
    from serve_eval.report.page.run_page import write_page

    include_path = report.plan.include_path
    save(lambda: write_page(report, out_dir, slices, include_path=include_path))


def save_comparison_page(
    comparison: Comparison, out_dir: Path, slices: Sequence[str], include_path: Sequence[str]
) -> None:
    """Write the page of a comparison. `slices` are sentences about where B lost its score."""
    from serve_eval.workflows.compare.page import write_comparison_page

    save(lambda: write_comparison_page(comparison, out_dir, slices, include_path=include_path))


def save_story_page(make: Callable[[], PageContent], path: Path) -> None:
    """Write the page of another story, and tell where it is."""
    from serve_eval.cli._streams import say
    from serve_eval.report.page.writer import save_page

    def write() -> None:
        save_page(make(), path)
        say(f"page: {path}")

    save(write)


def save(write: Callable[[], object]) -> None:
    """Write a page; if that fails, warn and go on, since the result is already saved."""
    from serve_eval.cli._streams import say

    try:
        write()
    except Exception as error:  # a page is made from texts of models, in any form
        say(f"warning: the page could not be written: {type(error).__name__}: {error}")
