"""Reading data sets: local files first, the Hugging Face hub only when it is asked for."""
