"""The steps of a run, each a function of the run's session."""
