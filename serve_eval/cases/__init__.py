"""Cases in YAML that are a user's own: from files to what is asked of an endpoint. docs/cases.md
has the format.
"""

__all__ = [
    "biochatter",
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
