"""Pure statistics: numbers in, numbers out. scipy is imported inside functions, so that only a verdict pays for it."""
