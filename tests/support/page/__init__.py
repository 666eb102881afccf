"""A place to look at the page of the farm in a browser: stored runs, an episode that runs, and Chromium."""
