"""Write the page of a story: one HTML file that needs no network and no other file."""
