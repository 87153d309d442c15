"""Our figures against those of independent implementations: `make oracle` prints what was compared
and what differs.
"""
