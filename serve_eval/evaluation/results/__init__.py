"""Score every answer, sum up each task and its repeats, and detect a run that degrades."""
