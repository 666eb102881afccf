"""The tool server, which runs inside a sandbox (``src``, in C), and its client on the host.

``client`` makes calls over ``connection`` in the format of ``protocol``. ``toolbox`` compiles the programs that
sandboxes need.

The page is sandboxes/docs/tool-server.md.
"""
