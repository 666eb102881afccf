"""Agent documents.

name = "my-agent"
pip = ["my-agent==1.2"]                                  # or: install = "apt-get install ...", a shell script
command = ["{bin}/my-agent", "--model", "{model}", "{instruction}"]

[env]
OPENAI_API_KEY = "{key}"
OPENAI_BASE_URL = "{openai_url}"
"""

from pydantic import ValidationError

from farm.core.nesting_limit import TooDeep
from farm.core.toml import read_toml
from farm.schemas.run_settings import AgentBody
from farm.schemas.validation_messages import complaints

MOST_BYTES = 64 * 1024


class BadAgent(ValueError):
    """An invalid agent document; the message is one line that names the key and the remedy."""


def parse_agent(content: bytes) -> AgentBody:
    """Parse an agent document in TOML. Raises BadAgent."""
    if len(content) > MOST_BYTES:
        raise BadAgent(f"the agent is too long: {len(content)} bytes; at most {MOST_BYTES} are allowed")
    try:
        document = read_toml(content)
    except TooDeep:
        raise BadAgent("the agent is nested too deeply") from None
    except ValueError as error:
        raise BadAgent(f"the agent is not TOML: {str(error).split(';')[0][:200]}") from None
    try:
        return AgentBody.model_validate(document)
    except ValidationError as error:
        first = complaints([{**item, "loc": ("body", *item["loc"])} for item in error.errors()])[0]
        raise BadAgent(f"{first.field}: {first.message}" if first.field else first.message) from None
