"""Strict models of the data on the wire and in Redis, and their encodings.

This room decides the form of requests, answers and records. Enter at ``requests``, ``responses`` and ``rollout``. The
pages are farm/docs/http-api.md and farm/docs/rollout-record.md.
"""
