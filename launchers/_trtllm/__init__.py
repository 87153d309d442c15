"""Describe what trtllm-serve serves: command lines, deployments, and options of its versions."""
