"""Send requests: one session (`client`) over a seam (`transport`), with every request answered or accounted for."""
