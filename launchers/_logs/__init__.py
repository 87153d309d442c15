"""Read the logs of servers: lines, signs of a dead server, and known causes of its end."""
