"""The texts of word problems, in the form that the embedded model was trained on."""

from __future__ import annotations

from serve_eval.datasets.word_problems import Problem

DATA_VERSION = 1
"""Rises whenever the generator gives other problems for the same seed."""


def format_question(problem: Problem) -> str:
    """A problem as a text that its solution continues."""
    return f"Question: {problem.question}\nAnswer: "


def format_solved(problem: Problem) -> str:
    """A problem with its solution."""
    return format_question(problem) + problem.solution
