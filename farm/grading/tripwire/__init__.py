"""Python's audit hooks in the processes of the tests: which lines of a change tamper with them.

``tripwire`` runs on the host. The other modules make up the program that runs in the sandbox; ``inside`` is its
beginning. farm/docs/architecture/tripwire.md explains it.
"""
