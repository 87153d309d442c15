"""Run the event loop of the process, and say which answers an interruption keeps."""

from __future__ import annotations

import asyncio
import signal
from collections.abc import Callable, Coroutine
from pathlib import Path
from typing import Any, TypeVar

import typer

from serve_eval.cli._interrupts import NUMBERS, leave
from serve_eval.errors import EndpointError, ServeEvalError, UnknownModelError
from serve_eval.shell_words import quote_path

T = TypeVar("T")


class Interrupted(Exception):
    """The user or a scheduler ended the run; finished answers are in the run folder."""


def loop_factory() -> Callable[[], asyncio.AbstractEventLoop] | None:
    """Return the factory of uvloop if it is installed; None stands for Python's own event loop."""
    try:
        import uvloop
    except ImportError:
        return None
    factory: Callable[[], asyncio.AbstractEventLoop] = uvloop.new_event_loop
    return factory


def run_async(main: Coroutine[Any, Any, T]) -> T:
    """Run `main` to its end.

    The first SIGINT or SIGTERM cancels it, so that servers are stopped and files closed, and raises
    Interrupted. A second one ends the process immediately. Afterwards the previous signal handlers
    are restored. An EndpointError says how the server ended, if `serve-eval serve` kept it up.
    """
    signals: list[int] = []
    before = {number: signal.getsignal(number) for number in NUMBERS}

    async def guard() -> T:
        task = asyncio.ensure_future(main)

        def stop(number: int) -> None:
            signals.append(number)
            if len(signals) > 1:
                leave()
            task.cancel()

        loop = asyncio.get_running_loop()
        for number in NUMBERS:
            loop.add_signal_handler(number, stop, number)
        return await task

    try:
        with asyncio.Runner(loop_factory=loop_factory()) as runner:
            return runner.run(guard())
    except asyncio.CancelledError:
        raise Interrupted from None
    except EndpointError as error:
        from serve_eval.workflows.servers.reuse import explain_lost

        raise explain_lost(error) from error
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def explain_kept(folder: Path, again: str) -> str:
    """Return a line with the command `again` that resumes.

    It says that answers are kept only if the folder holds some.
    """
    from serve_eval.storage.run_folder import holds_answer

    return (
        f"Finished answers are kept. Resume with: {again}"
        if holds_answer(folder)
        else f"No answer was received yet. Try again with: {again}"
    )


def find_continued(finding: Coroutine[Any, Any, tuple[Path, float] | None]) -> Path | None:
    """Return the unfinished folder that `finding` finds, with a line that it is continued."""
    from serve_eval.cli._streams import say
    from serve_eval.verdicts.exit_code import INTERRUPTED

    try:
        found = run_async(finding)
    except Interrupted:
        say("Interrupted; nothing was saved")
        raise typer.Exit(INTERRUPTED) from None
    if found is None:
        return None
    folder, age_s = found
    minutes = round(age_s / 60)
    ago = f"{minutes} min" if minutes < 120 else f"{minutes // 60} h"
    say(
        f"serve-eval: continuing {folder}, which is unfinished (last answer {ago} ago); to begin a"
        " new run: --new"
    )
    return folder


def can_resume(ending: Interrupted | ServeEvalError, folder: Path) -> bool:
    """Return True if the same command may go on with what the folder holds.

    One that named an unknown model has to be changed, if it received no answer before.
    """
    from serve_eval.storage.run_folder import holds_answer
    from serve_eval.verdicts.exit_code import INFRASTRUCTURE

    if isinstance(ending, UnknownModelError):
        return holds_answer(folder)
    return isinstance(ending, Interrupted) or ending.exit_code == INFRASTRUCTURE


def end_early(ending: Interrupted | ServeEvalError, folder: Path, plan_file: str) -> int:
    """Say what is kept of a command that ended early, and return its exit code.

    The folder holds something to resume once it has `plan_file`, a name or a pattern. An error is
    raised again.
    """
    from serve_eval.cli._streams import say
    from serve_eval.verdicts.exit_code import INTERRUPTED

    if can_resume(ending, folder) and any(folder.glob(plan_file)):
        say(explain_kept(folder, f"the same command with -o {quote_path(folder)}"))
    elif isinstance(ending, Interrupted):
        say("Interrupted; nothing was saved")
    if isinstance(ending, ServeEvalError):
        raise ending
    return INTERRUPTED
