"""Run Python code that a model wrote in another process, isolated from this machine."""

__all__ = [
    "isolation",
    "probe",
    "sandbox",
    "seccomp",
]
