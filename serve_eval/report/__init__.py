"""What a report looks like to people and to machines; report.json is the truth they are made
from.
"""

__all__ = ["attribution", "course", "layout", "lines", "page", "plots", "terminal", "text"]
