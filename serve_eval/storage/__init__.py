"""Read and write the files of a run. No other package touches them."""
