"""Launchers, one per file: each provides an endpoint for the length of a run.

`launch(context, *, options)` yields the endpoint; `commands()` returns the command lines that it
starts. Of serve_eval, launchers import only the nouns, the errors, and the rules for the variables
that a process inherits.

The folder stands at the top of the repository; the link `serve_eval/launchers` makes it a part of
the package, so that an installation owns one name.
"""

from __future__ import annotations
