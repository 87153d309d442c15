"""An example of a package that extends serve-eval; its pyproject.toml declares the extensions."""
