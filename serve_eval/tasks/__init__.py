"""Benchmarks, one per file: `task(*, options) -> Task`."""
