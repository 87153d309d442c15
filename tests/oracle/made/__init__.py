"""Make rows for tasks of lm-eval; nothing here is taken from a data set."""
