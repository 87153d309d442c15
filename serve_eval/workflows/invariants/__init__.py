"""Check one endpoint without right answers: changes that should change nothing."""
