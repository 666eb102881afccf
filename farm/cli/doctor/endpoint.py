"""The check of one policy endpoint."""

import httpx

from farm.cli.doctor.check_result import CheckMark, CheckResult
from farm.core.run import ReplyTimeouts
from farm.policy.base import PolicyError
from farm.policy.endpoint_access import EndpointAccess
from farm.policy.openai_endpoint import OpenAIEndpoint

NAME = "policy endpoint"
_REFUSED = (401, 403)


async def check_endpoint(url: str, access: EndpointAccess, within_s: float) -> CheckResult:
    """Request the models of an endpoint with its key. Any answer shows that it runs."""
    timeouts = ReplyTimeouts(within_s, within_s, within_s)
    try:
        endpoint = OpenAIEndpoint(url, access=access, timeouts=timeouts, models_timeout_s=within_s)
    except PolicyError as error:
        return CheckResult(NAME, CheckMark.LACKS, str(error), "correct policy_endpoints or FARM_POLICY_URL")
    try:
        status = (await endpoint.models(lambda body: body)).status
    except PolicyError as error:
        return CheckResult(NAME, CheckMark.LACKS, f"{url}: {error}", "correct policy_endpoints or FARM_POLICY_URL")
    except httpx.HTTPError as error:
        found = f"{url} does not answer: {str(error) or type(error).__name__}"
        return CheckResult(NAME, CheckMark.WARN, found, "start it, or correct policy_endpoints or FARM_POLICY_URL")
    finally:
        await endpoint.close()
    if status in _REFUSED:
        remedy = "set its key: key_env or key_file in policy_endpoints, or FARM_POLICY_KEY with FARM_POLICY_URL"
        return CheckResult(NAME, CheckMark.WARN, f"{url} refuses the key ({status})", remedy)
    if status >= 500:
        return CheckResult(NAME, CheckMark.WARN, f"{url} answers {status}", "its log says why; start it again")
    return CheckResult(NAME, CheckMark.OK, f"{url} answers {status}")
