"""Sort the finished runs below a folder into series, chart one, and find a slow decline."""
