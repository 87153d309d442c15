"""Pure statistics: functions of numbers, without input or output.

scipy is imported inside functions, so that only a verdict pays for it.
"""
