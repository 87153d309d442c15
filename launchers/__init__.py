"""Ways of getting an endpoint, one per file: `launch(context, *, options)` yields it, `commands()` says what starts.

Launchers see only the nouns and the errors of serve_eval, and what says which variables a process gets.
"""
