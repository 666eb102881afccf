"""The rule document, which combines raw components to one reward. It is TOML; its version is a hash of its content.

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

    [gate]                      # if the component is below at_least, only these count
    component = "resolved"
    at_least = 1.0
    otherwise = ["verdict", "misuse_malformed"]

    [clip]
    min = -1.0
    max = 1.0

A missing component counts as its transform's ``missing``, and not at all if its transform has none.
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
from farm.rewards.components import COMPONENTS, EFFORT, PLUGIN_PREFIX, is_component

MAX_RULES_CHARS = 64 * 1024
MAX_TERMS = 200
MAX_KEY_PARTS = 16
"""Limit for the parts of a dotted key. The longest that has a meaning has five: ``transforms.plugin.NAME.KEY.over``."""
_FORMAT_VERSION = 1
"""Part of each version; to be raised if this module changes the meaning of rules."""

Weight = Annotated[float, Field(strict=True, ge=-1e6, le=1e6, allow_inf_nan=False)]
Amount = Annotated[float, Field(strict=True, ge=-1e12, le=1e12, allow_inf_nan=False)]
Price = Annotated[float, Field(strict=True, ge=0, le=1e6, allow_inf_nan=False)]
Unit = Annotated[float, Field(strict=True, ge=1e-6, le=1e12, allow_inf_nan=False)]
"""A divisor, so far from 0 that the quotient stays finite."""
Name = Annotated[str, Field(max_length=128)]


class BadRules(ValueError):
    """An invalid rule document; the message is one line that names the key and the remedy."""


class _Table(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")


class Transform(_Table):
    """A transform of one component before it is weighted: ``min(cap, max(0, value - over) / per)``.

    ``missing`` replaces a missing component.
    """

    over: Amount | None = None
    per: Unit = 1.0
    cap: Amount | None = None
    missing: Amount | None = None


class EffortWeights(_Table):
    """The weights of the counts in the sum x; the unit of x is the inverse of the unit of ``k``."""

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
    otherwise: Annotated[tuple[Name, ...], Field(max_length=MAX_TERMS)] = ()


class Clip(_Table):
    min: Amount | None = None
    max: Amount | None = None

    @model_validator(mode="after")
    def _in_order(self) -> "Clip":
        if self.min is not None and self.max is not None and self.min > self.max:
            raise ValueError("min is above max")
        return self


class Rules(_Table):
    """A parsed rule document. Equal rules have equal versions, even if their TOML texts differ."""

    name: Annotated[str, Field(pattern=r"^[a-z0-9][a-z0-9-]{0,39}$")]
    weights: Annotated[Mapping[Name, Weight], Field(min_length=1, max_length=MAX_TERMS)]
    transforms: Annotated[Mapping[Name, Transform], Field(max_length=MAX_TERMS)] = {}
    effort: Effort | None = None
    gate: RewardGate | None = None
    clip: Clip = Clip()

    @cached_property
    def version(self) -> str:
        """``<name>-<12 digits of the SHA-256 of the content>``."""
        content = json.dumps([_FORMAT_VERSION, self.model_dump(mode="json")], sort_keys=True, separators=(",", ":"))
        return f"{self.name}-{hashlib.sha256(content.encode()).hexdigest()[:12]}"


def parse_rules(text: str) -> Rules:
    """Parse a rule document.

    Raises BadRules if it is invalid; for an unknown name the message suggests the most similar one.
    """
    if len(text) > MAX_RULES_CHARS:
        raise BadRules(f"the rules are too long: {len(text)} characters; at most {MAX_RULES_CHARS} are allowed")
    try:
        document = read_toml(text.encode(), MAX_KEY_PARTS)
    except TooDeep:
        raise BadRules("the rules are nested too deeply") from None
    except ValueError as error:  # also raised for a number with thousands of digits
        raise BadRules(f"the rules are not TOML: {str(error).split(';')[0][:200]}") from None
    _check_sizes(document)
    for table in ("weights", "transforms"):
        if isinstance(document.get(table), dict):
            document[table] = _join_plugin_names(document[table])
    try:
        rules = Rules.model_validate(document)
    except ValidationError as error:
        raise BadRules(_first_fault(error)) from None
    _check_names(rules)
    return rules


def _check_sizes(document: Mapping[str, Any]) -> None:
    """Raise BadRules for a table or list that is too long, because pydantic would first describe each of its items."""
    pending: list[tuple[str, Any]] = [("", document)]
    while pending:
        location, value = pending.pop()
        if isinstance(value, dict | list) and len(value) > MAX_TERMS:
            raise BadRules(f"{location[1:201] or 'the rules'}: {len(value)} items; at most {MAX_TERMS} are allowed")
        if isinstance(value, dict):
            pending.extend((f"{location}.{name[:100]}", item) for name, item in value.items())


@lru_cache(maxsize=1)
def default_text() -> str:
    return resources.files("farm.rewards").joinpath("default.toml").read_text()


@lru_cache(maxsize=1)
def default_rules() -> Rules:
    """Return the rules of a farm without configured rules: the reward is the verdict."""
    return parse_rules(default_text())


_PLUGIN = PLUGIN_PREFIX.rstrip(".")


def _join_plugin_names(table: Mapping[str, Any]) -> dict[str, Any]:
    """Join the nested tables of an unquoted ``plugin.length.words`` to one name.

    Raises BadRules if a name occurs both with and without quotes.
    """
    plugins = table.get(_PLUGIN)
    joined = {name: value for name, value in table.items() if name != _PLUGIN or not isinstance(plugins, dict)}
    for plugin, keys in plugins.items() if isinstance(plugins, dict) else ():
        named = keys.items() if isinstance(keys, dict) else [(None, keys)]
        for key, value in named:
            name = f"{PLUGIN_PREFIX}{plugin}" if key is None else f"{PLUGIN_PREFIX}{plugin}.{key}"
            if name in joined:
                raise BadRules(f"{name[:100]} occurs twice, with and without quotes; remove one")
            joined[name] = value
    return joined


def _check_names(rules: Rules) -> None:
    named: list[tuple[str, Iterable[str], bool]] = [
        ("weights", rules.weights, True),
        ("transforms", rules.transforms, True),
        ("gate.otherwise", rules.gate.otherwise if rules.gate else (), True),
        ("gate.component", (rules.gate.component,) if rules.gate else (), False),
    ]
    for location, names, derived in named:
        for name in names:
            if not is_component(name) and not (derived and name == EFFORT):
                valid = [*COMPONENTS, EFFORT] if derived else list(COMPONENTS)
                raise BadRules(f"{location}: there is no component {name[:100]!r}{_suggestion(name, valid)}")
    if EFFORT in rules.weights and rules.effort is None:
        raise BadRules("weights: effort needs a table [effort] with k, q and weights")
    for name in rules.gate.otherwise if rules.gate else ():
        if name not in rules.weights:
            raise BadRules(f"gate.otherwise: {name} has no weight; give it one under [weights]")
    for name in rules.transforms:
        if name not in rules.weights:
            raise BadRules(f"transforms: {name} has no weight; give it one under [weights]")


def _suggestion(name: str, names: Iterable[str]) -> str:
    if f"{name}.".startswith(PLUGIN_PREFIX):
        return f"; write {PLUGIN_PREFIX}NAME.KEY"
    near = difflib.get_close_matches(name[:100], list(names), n=1, cutoff=0.0)
    return f"; the nearest one is {near[0]!r}" if near else ""


_TABLES: Mapping[str, type[BaseModel]] = {"effort": Effort, "gate": RewardGate, "clip": Clip}


def _first_fault(error: ValidationError) -> str:
    faults = error.errors(include_url=False, include_input=False)
    first = next((fault for fault in faults if fault["type"] == "extra_forbidden"), faults[0])
    location = [str(part) for part in first["loc"]]
    if first["type"] == "missing":
        return f"{'.'.join(location)} is missing"
    if first["type"] != "extra_forbidden":
        message = str(first["msg"]).removeprefix("Value error, ").removeprefix("Input ")
        return f"{'.'.join(location)[:200]}: {message}" if location else message
    match location:
        case [_]:
            names: Iterable[str] = Rules.model_fields
        case ["transforms", _, _]:
            names = Transform.model_fields
        case ["effort", "weights", _]:
            names = EffortWeights.model_fields
        case _:
            names = _TABLES[location[0]].model_fields
    return f"unknown key {'.'.join(location)[:200]!r}{_suggestion(location[-1], names)}"
