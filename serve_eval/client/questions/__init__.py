"""Ask an endpoint about itself."""

__all__ = ["endpoint_questions", "raw_exchange", "self_description"]
