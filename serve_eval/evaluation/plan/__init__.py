"""Turn YAML, flags and environment into a Plan, and a Plan into prepared tasks."""
