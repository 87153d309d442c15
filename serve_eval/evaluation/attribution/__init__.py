"""Find out which worker of a deployment gave which answers."""
