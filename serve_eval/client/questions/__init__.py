"""Ask an endpoint about itself."""

__all__ = ["endpoint_questions", "engine_metrics", "raw_exchange", "self_description"]
