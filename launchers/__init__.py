"""Launchers, one per file: each provides an endpoint for the length of a run.

`launch(context, *, options)` yields the endpoint; `commands()` returns the command lines that it
starts. Of serve_eval, launchers import only the nouns, the errors, and the rules for the variables
that a process inherits.
"""

from __future__ import annotations

__all__ = ["OWNER"]

OWNER = "serve-eval"
"""Distinguishes this package from others with its name: see serve_eval/plugins/own_launchers.py."""
