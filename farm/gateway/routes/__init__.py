"""The routes of the gateway, one module for each kind of resource."""
