"""Smoke tests: what an endpoint does with each kind of request, found out in seconds and without a data set."""
