"""Keep the records of each answer: scores, judgements, results of programs, proofs and traces."""

__all__ = [
    "asked_cases",
    "executions",
    "judgements",
    "media",
    "prompts",
    "reply_proofs",
    "scores",
    "traces",
]
