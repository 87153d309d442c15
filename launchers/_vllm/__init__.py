"""vLLM: command lines, prefill and decode servers, and the front door that hands prompts over."""

__all__ = ["command_line", "deployment", "front_door", "handover", "transfer"]
