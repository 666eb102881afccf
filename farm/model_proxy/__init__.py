"""The recording proxy: the only way in which an agent inside a sandbox reaches the model of its run.

This room decides how requests in the form of other APIs become requests to the policy, and to which conversation each
reply belongs. Enter at ``ModelProxy``. ``recorder`` asks the policy, ``conversations`` assigns replies, and each API is
one file of ``dialects``. The page is farm/docs/architecture/model-proxy.md.
"""

from farm.model_proxy.proxy import MODEL_PORT, ModelProxy, ProxySettings
from farm.model_proxy.recorder import RecordedReply, Recorder, RecordLimits

__all__ = ["MODEL_PORT", "ModelProxy", "ProxySettings", "RecordLimits", "RecordedReply", "Recorder"]
