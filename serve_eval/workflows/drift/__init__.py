"""Show the drift charts of series of runs. The charts are those of `serve_eval.series`."""

__all__ = ["document"]
