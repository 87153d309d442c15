"""Keep the records of each answer: scores, judgements, results of programs, proofs and traces."""

__all__ = [
    "answer_origins",
    "executions",
    "judgements",
    "prompts",
    "scores",
]
