"""Turn YAML, flags and environment variables into a Plan, and hold prepared tasks."""
