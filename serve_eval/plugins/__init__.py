"""Load tasks, scorers, launchers and verdict rules from our files and from those of users."""
