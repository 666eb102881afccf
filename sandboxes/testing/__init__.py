"""In-memory sandboxes for tests of code that uses sandboxes. Product code does not use them.

Enter at ``FakeRuntime``. The page is sandboxes/docs/README.md.
"""
