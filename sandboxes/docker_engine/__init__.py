"""The HTTP interface of the Docker Engine, as much of it as sandboxes and images need."""
