"""Ask every sample once and account for every answer."""
