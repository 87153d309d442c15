"""Compare our figures with independent implementations; `make oracle` prints the differences."""
