"""A continuous canary: the same questions and checks again and again, and an alarm when they turn worse."""
