"""Ask an endpoint about itself."""
