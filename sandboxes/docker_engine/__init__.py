"""A client for the HTTP API of the Docker Engine."""
