"""Find out in seconds whether servers still serve the model that was deployed."""
