"""A proposer of drafts for vLLM that is always wrong, as one trained for another model can be."""

NEVER_SAID = 1
"""The token that begins the system turn of a prompt."""


class BadDrafts:
    """Proposes a token that no answer has, as often as the options ask for."""

    def __init__(self, vllm_config):
        self._tokens = vllm_config.speculative_config.num_speculative_tokens
        self._longest = vllm_config.model_config.max_model_len

    def propose(self, sampled, lengths, *_, **__):
        """Return the drafts of each request; none where a prompt is still being read."""
        return [
            [NEVER_SAID] * min(self._tokens, max(0, self._longest - int(length) - 1)) if new else []
            for new, length in zip(sampled, lengths, strict=False)
        ]

    def load_model(self, *_, **__):
        """Load nothing."""
