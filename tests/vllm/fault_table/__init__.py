"""Real faults of a real disaggregated vLLM, and what each command of serve-eval says of them."""
