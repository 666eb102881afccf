"""The rule document: how raw components become one reward. TOML, versioned by what it says.

    name = "careful"            # begins the version

    [weights]                   # the reward is the sum of weight * component
    verdict = 1.0
    style_new = -0.02
    effort = -0.1
    plugin.length.words = 0.01

    [transforms.style_new]      # first: min(cap, (value - over, at least 0) / per)
    over = 2.0
    cap = 10.0

    [effort]                    # C(x) of x = the weighted sum of the counts
    k = 0.001
    q = 0.5
    weights = { completion_tokens = 1.0, calls = 50.0 }

    [gate]                      # where the component is below at_least, only these count
    component = "resolved"
    at_least = 1.0
    otherwise = ["verdict", "misuse_malformed"]

    [clip]
    min = -1.0
    max = 1.0

A component that a vector lacks counts as its transform's ``missing``, without that not at all.
"""

import difflib
import hashlib
import json
from collections.abc import Iterable, Mapping
from functools import cached_property, lru_cache
from importlib import resources
from typing import Annotated, Any

from pydantic import BaseModel, ConfigDict, Field, ValidationError, model_validator

from farm.core.nesting_limit import TooDeep
from farm.core.toml import read_toml
from farm.rewards.components import ABOUT, EFFORT, PLUGIN_PREFIX, is_component

MOST_CHARS = 64 * 1024
MOST_TERMS = 200
_FORM = 1
"""Part of each version: what rules mean is this module's affair too."""

Weight = Annotated[float, Field(strict=True, ge=-1e6, le=1e6, allow_inf_nan=False)]
Amount = Annotated[float, Field(strict=True, ge=-1e12, le=1e12, allow_inf_nan=False)]
Price = Annotated[float, Field(strict=True, ge=0, le=1e6, allow_inf_nan=False)]
Unit = Annotated[float, Field(strict=True, ge=1e-6, le=1e12, allow_inf_nan=False)]
"""What is divided by: so far from 0 that what comes of it can be written down."""
Name = Annotated[str, Field(max_length=128)]


class BadRules(ValueError):
    """A document that is no rules; one line that names the key and the remedy."""


class _Table(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")


class Transform(_Table):
    """Of one component, before it is weighed. ``over``: what is free of charge; ``per``: what counts as 1."""

    over: Amount | None = None
    per: Unit = 1.0
    cap: Amount | None = None
    missing: Amount | None = None


class EffortWeights(_Table):
    """So much does each count for; in whatever unit ``k`` is one over."""

    turns: Price = 0.0
    calls: Price = 0.0
    prompt_tokens: Price = 0.0
    completion_tokens: Price = 0.0


class Effort(_Table):
    k: Annotated[float, Field(strict=True, ge=1e-12, le=1e6, allow_inf_nan=False)]
    q: Annotated[float, Field(strict=True, ge=0, le=10, allow_inf_nan=False)]
    weights: EffortWeights


class RewardGate(_Table):
    component: Name
    at_least: Amount = 1.0
    otherwise: Annotated[tuple[Name, ...], Field(max_length=MOST_TERMS)] = ()


class Clip(_Table):
    min: Amount | None = None
    max: Amount | None = None

    @model_validator(mode="after")
    def _in_order(self) -> "Clip":
        if self.min is not None and self.max is not None and self.min > self.max:
            raise ValueError("min is above max")
        return self


class Rules(_Table):
    """One document, parsed. Equal rules have equal versions, however they are written down."""

    name: Annotated[str, Field(pattern=r"^[a-z0-9][a-z0-9-]{0,39}$")]
    weights: Annotated[Mapping[Name, Weight], Field(min_length=1, max_length=MOST_TERMS)]
    transforms: Annotated[Mapping[Name, Transform], Field(max_length=MOST_TERMS)] = {}
    effort: Effort | None = None
    gate: RewardGate | None = None
    clip: Clip = Clip()

    @cached_property
    def version(self) -> str:
        """``<name>-<12 digits of the SHA-256 of what it says>``."""
        said = json.dumps([_FORM, self.model_dump(mode="json")], sort_keys=True, separators=(",", ":"))
        return f"{self.name}-{hashlib.sha256(said.encode()).hexdigest()[:12]}"


def parse_rules(text: str) -> Rules:
    """Raises BadRules; a name that is not known is refused with the nearest one there is."""
    if len(text) > MOST_CHARS:
        raise BadRules(f"the rules have {len(text)} characters; at most {MOST_CHARS} are taken")
    try:
        plain = read_toml(text.encode())
    except TooDeep:
        raise BadRules("the rules are nested too deeply") from None
    except ValueError as error:  # also a number of thousands of digits
        raise BadRules(f"the rules are not TOML: {str(error).split(';')[0][:200]}") from None
    for table in ("weights", "transforms"):
        if isinstance(plain.get(table), dict):
            plain[table] = _undotted(plain[table])
    try:
        rules = Rules.model_validate(plain)
    except ValidationError as error:
        raise BadRules(_told(error)) from None
    _refuse_unknown(rules)
    return rules


@lru_cache(maxsize=1)
def default_text() -> str:
    return resources.files("farm.rewards").joinpath("default.toml").read_text()


@lru_cache(maxsize=1)
def default_rules() -> Rules:
    """Those of a farm that was given no others: the reward is the verifier's."""
    return parse_rules(default_text())


_PLUGIN = PLUGIN_PREFIX.rstrip(".")


def _undotted(table: Mapping[str, Any]) -> dict[str, Any]:
    """What TOML reads as tables in tables, ``plugin.length.words``, is one name. Raises BadRules."""
    plugins = table.get(_PLUGIN)
    found = {name: value for name, value in table.items() if name != _PLUGIN or not isinstance(plugins, dict)}
    for plugin, keys in plugins.items() if isinstance(plugins, dict) else ():
        named = keys.items() if isinstance(keys, dict) else [(None, keys)]
        for key, value in named:
            name = f"{PLUGIN_PREFIX}{plugin}" if key is None else f"{PLUGIN_PREFIX}{plugin}.{key}"
            if name in found:
                raise BadRules(f"{name[:100]} is there twice, with and without quotes; leave one out")
            found[name] = value
    return found


def _refuse_unknown(rules: Rules) -> None:
    named: list[tuple[str, Iterable[str], bool]] = [
        ("weights", rules.weights, True),
        ("transforms", rules.transforms, True),
        ("gate.otherwise", rules.gate.otherwise if rules.gate else (), True),
        ("gate.component", (rules.gate.component,) if rules.gate else (), False),
    ]
    for where, names, derived in named:
        for name in names:
            if not is_component(name) and not (derived and name == EFFORT):
                known = [*ABOUT, EFFORT] if derived else list(ABOUT)
                raise BadRules(f"{where}: there is no component {name[:100]!r}{_nearest(name, known)}")
    if EFFORT in rules.weights and rules.effort is None:
        raise BadRules("weights: effort needs a table [effort] with k, q and weights")
    for name in rules.gate.otherwise if rules.gate else ():
        if name not in rules.weights:
            raise BadRules(f"gate.otherwise: {name} has no weight; give it one under [weights]")
    for name in rules.transforms:
        if name not in rules.weights:
            raise BadRules(f"transforms: {name} has no weight; give it one under [weights]")


def _nearest(name: str, known: Iterable[str]) -> str:
    if f"{name}.".startswith(PLUGIN_PREFIX):
        return f"; write {PLUGIN_PREFIX}NAME.KEY"
    near = difflib.get_close_matches(name[:100], list(known), n=1, cutoff=0.0)
    return f"; the nearest one is {near[0]!r}" if near else ""


_TABLES: Mapping[str, type[BaseModel]] = {"effort": Effort, "gate": RewardGate, "clip": Clip}


def _told(error: ValidationError) -> str:
    faults = error.errors(include_url=False, include_input=False)
    first = next((fault for fault in faults if fault["type"] == "extra_forbidden"), faults[0])
    where = [str(part) for part in first["loc"]]
    if first["type"] == "missing":
        return f"{'.'.join(where)} is missing"
    if first["type"] != "extra_forbidden":
        message = str(first["msg"]).removeprefix("Value error, ").removeprefix("Input ")
        return f"{'.'.join(where)[:200]}: {message}" if where else message
    match where:
        case [_]:
            known: Iterable[str] = Rules.model_fields
        case ["transforms", _, _]:
            known = Transform.model_fields
        case ["effort", "weights", _]:
            known = EffortWeights.model_fields
        case _:
            known = _TABLES[where[0]].model_fields
    return f"unknown key {'.'.join(where)[:200]!r}{_nearest(where[-1], known)}"
