"""A stand-in for trtllm-serve: its command lines, files and HTTP API, without a model or GPU.

`python -m serve_eval.launchers._standin` takes the place of the executable.
"""
