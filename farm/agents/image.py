"""The image of a task with an agent in it: one more layer, in which the agent was installed.

The agent is installed in the task's own image, so that it fits its libraries. Only the policy's sandbox boots from
this image. Tests run in the image of the task.
"""

import hashlib
import json
import re
import shlex
from collections.abc import Mapping
from dataclasses import asdict, replace

from farm.core.agent import AGENT_DIR, Agent
from farm.core.task import Task
from farm.tasks.images import TASK_PREFIX, image_for_user, policy_spec
from sandboxes.errors import ImageError
from sandboxes.images.store import ImageInfo, ImageStore
from sandboxes.spec import SandboxSpec

BUILD_S = 1800.0
INSTALL_SCRIPT = "install-agent.sh"
_USER = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.:-]*|")
"""A user as a Dockerfile takes it. The author of an image decides this text, which could be further instructions."""
_BASE_DIGEST_LABEL = "org.opencontainers.image.base.digest"


def image_with_agent(task: Task, agent: Agent) -> str:
    """Return the image of the policy's sandbox: the task's own if there is nothing to install."""
    base = image_for_user(task, task.user)
    if not agent.installs:
        return base
    installed = {name: value for name, value in asdict(agent).items() if name in ("pip", "install")}
    digest = hashlib.sha256(f"{base}\0{json.dumps(installed, sort_keys=True)}".encode()).hexdigest()
    return f"{TASK_PREFIX}agent:{digest[:12]}"


def agent_spec(task: Task, agent: Agent, *, labels: Mapping[str, str]) -> SandboxSpec:
    """Return the spec of a sandbox in which an agent works."""
    return replace(policy_spec(task, labels=labels), image=image_with_agent(task, agent))


async def ensure_agent_image(task: Task, agent: Agent, images: ImageStore) -> None:
    """Build the image with the agent unless it is there, built on the current image of the task.

    Raises ImageError if the agent cannot be installed in the image of the task, and RuntimeUnavailable.
    """
    if not agent.installs:
        return
    base, name = image_for_user(task, task.user), image_with_agent(task, agent)
    task_image = await images.inspect(base)
    if task_image is None:
        raise ImageError(f"{base} was removed before the agent {agent.name} was installed in it")
    existing = await images.inspect(name)
    if existing is not None and existing.labels.get(_BASE_DIGEST_LABEL) == task_image.digest:
        return
    context = {"Dockerfile": dockerfile_with_agent(task_image, agent).encode()}
    if agent.install:
        context[INSTALL_SCRIPT] = agent.install.encode()
    try:
        await images.build(name, context, timeout_s=BUILD_S)
    except ImageError as error:
        raise ImageError(f"the agent {agent.name} cannot be installed in {base}: {error}") from None


def dockerfile_with_agent(base: ImageInfo, agent: Agent) -> str:
    """Return the steps that install an agent as root, and then restore the user of the image.

    Raises ImageError if the user of the image is no name.
    """
    if not _USER.fullmatch(base.user):
        raise ImageError(f"{base.name} has the user {base.user[:100]!r}; name one with USER, by letters and digits")
    lines = [f"FROM {base.name}", f'LABEL {_BASE_DIGEST_LABEL}="{base.digest}"', "USER root"]
    if agent.pip:
        python = f"{AGENT_DIR}/bin/python"
        requirements = " ".join(map(shlex.quote, agent.pip))
        lines.append(
            f"RUN python3 -m venv --without-pip {AGENT_DIR} && "
            f"python3 -m pip --python {python} install --quiet --no-cache-dir {requirements}"
        )
    if agent.install:
        lines += [
            f"COPY {INSTALL_SCRIPT} {AGENT_DIR}/{INSTALL_SCRIPT}",
            f"RUN cd {AGENT_DIR} && AGENT_DIR={AGENT_DIR} sh ./{INSTALL_SCRIPT}",
        ]
    return "\n".join([*lines, *([f"USER {base.user}"] if base.user else []), ""])
