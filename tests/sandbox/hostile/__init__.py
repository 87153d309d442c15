"""Programs that try to get out of the sandbox, and what shows whether they did: a table of data,
and what runs it.

python -m tests.sandbox.hostile namespaces        # prints what stopped each, under one isolation
"""
