"""Get an endpoint and learn what serves it."""
