"""Requests and answers about sandboxes that learners step themselves."""
