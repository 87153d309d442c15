"""Run many plans and give one verdict.

`file` reads the runs (`layers`, `matrix`, `match`), `execution` performs them (`folder`,
`server_groups`), and `judgement` judges them.
"""
