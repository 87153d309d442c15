"""Turn a user's own cases in YAML files into questions: docs/own-questions.md has the format."""

__all__ = [
    "biochatter",
    "case_scorers",
    "expansion",
    "file",
    "form",
    "planned",
    "prompts",
    "questions",
]
