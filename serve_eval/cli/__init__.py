"""Provide the command line, with one command per file.

Each command imports its heavy modules when it is called. This file imports nothing at its top: the
current folder could supply it.
"""


def main() -> None:
    """Run `serve-eval` in this process.

    It first takes the current folder off the import path. Then it installs the signal handlers,
    before it imports anything else.
    """
    import atexit
    import gc
    import os
    import sys

    from serve_eval.processes.import_path import leave_out_current_folder

    leave_out_current_folder()

    from serve_eval.cli._interrupts import EXIT_CODE, LINE, Interrupts

    # Otherwise the interpreter walks all objects several times before it ends, which took 80 ms.
    atexit.register(gc.freeze)
    interrupts = Interrupts()
    interrupts.install()
    try:
        from serve_eval.processes.rare_collections import OF_A_COMMAND, rare_collections

        with rare_collections(OF_A_COMMAND):
            from serve_eval.cli import app

            interrupts.armed = True
            if os.environ.get("_SERVE_EVAL_COMPLETE"):
                from serve_eval.cli.setup_completion import print_completions

                return print_completions()
            app.main(interrupted=lambda: interrupts.came)
    except BaseException as ending:
        if not (interrupts.came or isinstance(ending, KeyboardInterrupt)):
            raise
        from serve_eval.cli._streams import say

        say(LINE)
        sys.exit(EXIT_CODE)
    finally:
        interrupts.armed = False
