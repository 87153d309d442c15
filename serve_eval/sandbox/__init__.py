"""Run Python code that a model wrote in another process, isolated from this machine."""

__all__ = ["bundle", "isolation", "probe", "sandbox", "seccomp", "watch"]
