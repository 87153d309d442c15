"""The embedded model and its server."""
