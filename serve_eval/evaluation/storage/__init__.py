"""Know the files of a run: the only package that reads and writes them."""
