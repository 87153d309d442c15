"""Say what a run or two runs show: where they agree, who answered, and on which path."""
