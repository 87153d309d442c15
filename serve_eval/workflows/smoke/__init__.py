"""Smoke test: run the checks and judge an endpoint by them."""

__all__ = ["endpoint", "junit", "smoke"]
