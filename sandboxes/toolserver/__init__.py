"""The program that answers the calls of a sandbox (``src``, in C), and the host's side of it.

``client`` makes calls over ``connection`` in the words of ``protocol``. ``toolbox`` compiles what sandboxes hold.

sandboxes/docs/tool-server.md explains it.
"""
