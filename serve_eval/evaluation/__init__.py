"""Evaluate an endpoint. Start reading at `evaluate`, which runs all steps."""
