"""Smoke test: run the checks and judge an endpoint by them."""
