"""Describe what trtllm-serve serves: command lines, deployments, and what each version knows."""
