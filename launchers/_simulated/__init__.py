"""Serve a simulated endpoint, which looks answers up in a file."""

__all__ = [
    "answer_file",
    "config",
    "guided",
    "prompt_logprobs",
    "simulator",
]
