"""Show samples of a run: what was asked, answered, extracted and expected."""
