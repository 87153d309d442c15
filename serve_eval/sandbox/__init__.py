"""Runs Python code that a model wrote: never in our process, and shut off from this machine."""

__all__ = ["bundle", "isolation", "probe", "sandbox", "seccomp", "watch"]
