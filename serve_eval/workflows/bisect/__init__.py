"""Find the option or the step that broke the accuracy. Start at `bisect.bisect`."""
