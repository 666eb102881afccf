"""The APIs that agents speak: each file translates requests of one API to a ``ModelRequest``, and a reply back."""
