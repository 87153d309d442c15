"""Export runs as the result files and tables of BioChatter's benchmark."""

__all__ = ["export", "records", "tables"]
