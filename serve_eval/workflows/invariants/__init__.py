"""Check one endpoint without expected answers, by changes that must not change the answers."""
