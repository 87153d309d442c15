"""Send requests to one endpoint and account for each of them."""
