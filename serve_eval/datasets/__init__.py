"""Read data sets: from local files first, from the Hugging Face hub only on request."""
