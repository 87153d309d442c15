"""Use lm-evaluation-harness (the optional extra lm-eval) as a source of tasks.

It provides documents, prompts, filters and metrics; our engine sends the requests. Nothing here is
imported before one of its tasks is named.
"""
