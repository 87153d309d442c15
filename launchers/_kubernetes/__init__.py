"""Servers that run in a Kubernetes cluster: found, waited for, reached, watched and recorded."""

__all__: list[str] = []
