"""Upper bounds of the buckets of histograms that several series share."""

SECONDS = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60, 120, 300, 600, 1800, 3600)
TURNS = (0, 1, 2, 5, 10, 20, 30, 50, 75, 100, 150, 200, 500)
