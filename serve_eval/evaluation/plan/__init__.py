"""Turn YAML, flags and environment into a Plan, and a Plan into prepared tasks."""

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
