"""The tripwire: Python audit hooks in the test processes that report which lines of a change tamper with the tests.

``tripwire`` runs the hook and reads its output on the host, ``changed_lines`` says which lines it watches, and
``findings`` what its findings do to a verdict. The other modules together are the program that runs in the sandbox;
``audit_hook`` is its entry point. The page is farm/docs/architecture/tripwire.md.
"""
