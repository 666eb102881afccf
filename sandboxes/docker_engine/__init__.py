"""A client for the HTTP API of the Docker Engine. Enter at ``api``. The page is sandboxes/docs/runtime-docker.md."""
