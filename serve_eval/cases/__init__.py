"""Cases in YAML that are a user's own: from files to what is asked of an endpoint. docs/cases.md has the format."""
