"""Small tasks for the tests of what runs, judges and delivers them."""

from collections.abc import Mapping

from farm.core.change import Change
from farm.core.task import GradingMode, ReportFormat, Task, Verifier
from farm.tasks.bundle import BundleFile, TaskBundle


def bundle(
    *,
    image: str = "tiny",
    workspace: str = "/repo",
    gold: Change | None = None,
    solution: Mapping[str, BundleFile] | None = None,
    tests: Mapping[str, BundleFile] | None = None,
    fail_to_pass: tuple[str, ...] = ("tests/test_tiny.py::test_it",),
    command: str = "python3 -m pytest --junitxml={report} {files}",
    agent_timeout_s: float = 60.0,
    max_turns: int = 20,
    tools: tuple[str, ...] = (),
) -> TaskBundle:
    verifier = Verifier(
        mode=GradingMode.PATCH,
        command=command,
        report=ReportFormat.PYTEST,
        fail_to_pass=fail_to_pass,
        pass_to_pass=(),
        protected=("tests/",),
        timeout_s=60.0,
    )
    task = Task(
        id="tiny",
        digest="0" * 64,
        instruction="Make the answer 42.",
        image=image,
        workspace=workspace,
        verifier=verifier,
        agent_timeout_s=agent_timeout_s,
        build_timeout_s=60.0,
        max_turns=max_turns,
        tools=tools,
        cpus=1.0,
        memory_mib=512,
        storage_mib=1024,
    )
    return TaskBundle(task=task, environment={}, tests=tests or {}, gold=gold, solution=solution or {})
