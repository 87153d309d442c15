"""Ask every sample once, with as many requests in flight as the endpoint can handle."""
