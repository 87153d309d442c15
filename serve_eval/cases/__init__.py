"""Turn a user's own cases in YAML files into questions. docs/cases.md describes the format."""

__all__ = [
    "biochatter",
    "case_problems",
    "case_scorers",
    "expansion",
    "failure_modes",
    "file",
    "form",
    "holdout",
    "keys",
    "planned",
    "prompts",
    "question",
    "question_maker",
    "questions",
]
