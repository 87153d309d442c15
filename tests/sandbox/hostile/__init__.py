"""Try to escape from the sandbox with hostile programs, and detect whether one did.

A table holds them as data, and a module runs it.

python -m tests.sandbox.hostile namespaces # prints what stopped each, under one isolation
"""
