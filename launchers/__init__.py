"""Ways of getting an endpoint, one per file: `launch(context, *, options)` yields it, `commands()`
says what starts.

Launchers see only the nouns and the errors of serve_eval, and what says which variables a process
gets.
"""

from __future__ import annotations

__all__ = ["OWNER"]

OWNER = "serve-eval"
"""Tells this package from others of its name: see serve_eval/plugins/own_launchers.py."""
