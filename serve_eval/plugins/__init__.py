"""Turn files of ours and of users into tasks, scorers, launchers and verdict rules."""
