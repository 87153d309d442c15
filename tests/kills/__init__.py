"""Kill commands before any change of their folder, and give the same command again."""
