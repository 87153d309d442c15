"""Measure the accuracy of one endpoint over the number of requests in flight."""
