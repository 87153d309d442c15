"""Show a report on the terminal and as a page. Both are made from report.json."""
