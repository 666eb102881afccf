"""Programs to read and to start from."""
