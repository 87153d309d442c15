"""An example of a package that extends serve-eval; its pyproject.toml says what it offers."""
