"""The clients that are measured.

Each module has `opened(base_url, concurrency, stream)`: a context manager that opens a session and
gives `ask(i)`, which sends request `i` and returns whether the whole and right answer came.
"""
