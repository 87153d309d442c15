"""Format word problems as texts in the form that the embedded model was trained on."""

from __future__ import annotations

from serve_eval.datasets.word_problems import Problem

DATA_VERSION = 1
"""Increases when the generator gives other problems for the same seed."""


def format_question(problem: Problem) -> str:
    """Return a problem as a text that its solution continues."""
    return f"Question: {problem.question}\nAnswer: "


def format_solved(problem: Problem) -> str:
    """Return a problem with its solution."""
    return format_question(problem) + problem.solution
