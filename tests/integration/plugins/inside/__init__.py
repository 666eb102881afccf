"""Programs that run in the environment of ``tests.support.plugin_env``, where the packages of the tools are."""
