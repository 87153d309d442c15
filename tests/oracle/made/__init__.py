"""Made-up rows for tasks of lm-eval. Nothing here is taken from a data set."""
