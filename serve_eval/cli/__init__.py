"""The command line: one command per file. Heavy imports happen inside the command that needs
them.
"""

from __future__ import annotations

__all__ = ["main"]


def main() -> None:
    """Runs `serve-eval` as this process. The signals are taken before anything else is imported."""
    import sys

    from serve_eval.cli._interrupts import EXIT_CODE, LINE, Interrupts

    interrupts = Interrupts()
    interrupts.install()
    try:
        from serve_eval.cli import app

        interrupts.armed = True
        app.main(interrupted=lambda: interrupts.came)
    except BaseException as ending:
        if not (interrupts.came or isinstance(ending, KeyboardInterrupt)):
            raise
        from serve_eval.cli._streams import say

        say(LINE)
        sys.exit(EXIT_CODE)
    finally:
        interrupts.armed = False
