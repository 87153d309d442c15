"""Run the smoke test: check an endpoint and judge it by the results."""

__all__ = [
    "ci",
    "smoke",
]
