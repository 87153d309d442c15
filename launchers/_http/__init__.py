"""Serve the OpenAI API over HTTP: the layer that the simulated and the embedded server share."""
