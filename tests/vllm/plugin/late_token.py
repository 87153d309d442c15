"""A logits processor for vLLM that damages one generated token, as a fault at one step does.

The real one: from five requests in flight on, with CUDA graphs, the ninth token was wrong.
"""

from vllm.v1.sample.logits_processor import LogitsProcessor, MoveDirectionality

PLACE = 9
"""Number of the damaged token, counted from 1."""


class LateToken(LogitsProcessor):
    """Leaves out the likeliest token at PLACE."""

    def __init__(self, vllm_config, device, is_pin_memory):
        self.outputs = {}

    def is_argmax_invariant(self):
        """Return False: greedy decoding changes too."""
        return False

    def update_state(self, batch_update):
        """Follow the requests through the batch."""
        if batch_update is None:
            return
        for index in batch_update.removed:
            self.outputs.pop(index, None)
        for index, _, _, tokens in batch_update.added:
            self.outputs[index] = tokens
        for one, other, how in batch_update.moved:
            first, second = self.outputs.pop(one, None), self.outputs.pop(other, None)
            if first is not None:
                self.outputs[other] = first
            if second is not None and how == MoveDirectionality.SWAP:
                self.outputs[one] = second

    def apply(self, logits):
        """Damage the rows that are about to give the token."""
        for index, tokens in self.outputs.items():
            if len(tokens) == PLACE - 1:
                logits[index, logits[index].argmax()] = float("-inf")
        return logits
