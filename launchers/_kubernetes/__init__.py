"""Servers that run in a Kubernetes cluster: found, waited for, reached, watched and recorded."""
