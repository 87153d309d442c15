"""Run lm-eval's command line with our model."""

from __future__ import annotations

import sys

from serve_eval.cli._streams import say
from serve_eval.errors import ServeEvalError, install_hint


def main() -> None:
    """Run it, and print errors that the user can fix with their hint and exit code."""
    try:
        from lm_eval.__main__ import cli_evaluate

        import serve_eval.lm_eval_model.model  # noqa: F401  (registers the model)
    except ModuleNotFoundError as error:
        say(f"error: {error.name} is not installed", install_hint("lm-eval"))
        sys.exit(2)
    try:
        cli_evaluate()
    except ServeEvalError as error:
        say(f"error: {error}", error.hint)
        sys.exit(error.exit_code)


if __name__ == "__main__":
    main()
