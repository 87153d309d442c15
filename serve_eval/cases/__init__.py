"""Turn a user's own cases in YAML files into questions: docs/own-questions.md has the format."""
