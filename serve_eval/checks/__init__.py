"""Check what an endpoint does with each kind of request, without a data set."""
