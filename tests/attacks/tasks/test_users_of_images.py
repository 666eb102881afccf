"""The author of an image puts instructions into the name of its user, which the image with an agent repeats."""

import pytest

from farm.agents.image import dockerfile_with_agent
from farm.core.agent import Agent
from sandboxes.errors import ImageError
from sandboxes.images.store import ImageInfo

AGENT = Agent("a", ("a",), pip=("a==1; true", "b'$(id)"))


def image(user: str) -> ImageInfo:
    return ImageInfo("farm-task-x:1", "sha256:0", {}, "/", 0, {}, user=user)


@pytest.mark.parametrize(
    "user",
    ["x\nFROM docker.io/evil", "root\nRUN --mount=type=bind,target=/x true", "a b", "$HOME", "x\\", "x\r", "-x", "'x'"],
)
def test_user_that_is_no_name_is_refused(user: str) -> None:
    with pytest.raises(ImageError, match="name one with USER, by letters and digits"):
        dockerfile_with_agent(image(user), AGENT)


@pytest.mark.parametrize("user", ["", "root", "1000", "1000:1000", "node.js_user-1:staff"])
def test_name_of_a_user_is_restored(user: str) -> None:
    lines = dockerfile_with_agent(image(user), AGENT).splitlines()
    assert lines[0] == "FROM farm-task-x:1"
    assert lines[-1] == (f"USER {user}" if user else lines[3])
    assert lines[3].endswith("""'a==1; true' 'b'"'"'$(id)'""")
    assert len(lines) == 4 + bool(user)
