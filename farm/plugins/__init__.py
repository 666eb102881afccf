"""Plug-ins that bring the farm's sandboxes into other people's tools. Each module needs an extra.

``inspect_ai`` and ``harbor`` use the sandboxes of this machine (``local_sandboxes``). ``mini_swe_agent`` and
``openenv`` use the sandboxes of a running farm, over HTTP. The page is farm/docs/plugins.md.
"""
