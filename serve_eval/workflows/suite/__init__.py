"""Run many plans and give one verdict.

`file` reads the runs (`layers`, `matrix`, `match`), `execution` performs them (`folder`,
`server_groups`), and `judgement` judges them.
"""

__all__ = [
    "checked_runs",
    "ci",
    "document",
    "execution",
    "file",
    "folder",
    "judgement",
    "matrix",
    "rows",
    "suite_form",
    "table",
]
