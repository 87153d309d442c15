"""Run servers together for the length of a block: place, start, watch and end them."""
