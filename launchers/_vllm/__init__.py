"""vLLM: command lines, prefill and decode servers, and the orchestrator that hands prompts over."""
