"""Tell every other story: one folder or module per command."""
