"""Turn YAML, flags and environment variables into a Plan, and hold prepared tasks."""

__all__ = [
    "check",
    "launcher",
    "limits_options",
    "options",
    "plan_file",
    "prepared_task",
    "resolve",
    "settings",
    "shared_options",
]
