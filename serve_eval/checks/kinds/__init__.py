"""What is checked: related checks in a file, which lists them as CHECKS."""
