"""Limits and pressure of this host."""
