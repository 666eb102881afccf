"""The routes of the gateway, one module for each kind of resource. The page is farm/docs/http-api.md."""
