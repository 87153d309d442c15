"""Turn a user's own cases in YAML files into questions. docs/cases.md describes the format."""

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
