"""Plan a test: the drop that a number of samples finds, and the samples that a drop takes."""
