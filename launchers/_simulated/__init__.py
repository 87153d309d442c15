"""Serve a simulated endpoint, which looks answers up in a file."""

__all__ = [
    "answer_file",
    "asked",
    "config",
    "failed_replies",
    "faults",
    "guided",
    "prompt_logprobs",
    "simulator",
    "tools",
    "words",
]
