"""Turn YAML, flags and environment variables into a Plan, and hold prepared tasks."""

__all__ = [
    "address",
    "check",
    "flag_values",
    "limits_options",
    "options",
    "parse",
    "prepared_task",
    "resolve",
    "serialise",
    "set_options",
    "shared_options",
]
