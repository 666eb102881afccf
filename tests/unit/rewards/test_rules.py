"""Tests of parsing reward rules: valid and invalid documents, messages and versions."""

import re
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from farm.rewards import BadRules, default_rules, default_text, parse_rules, score
from farm.rewards.components import COMPONENTS

ROOT = Path(__file__).resolve().parents[3]
PLAIN = 'name = "plain"\n[weights]\nverdict = 1.0\n'


def test_default_document_is_valid_rules() -> None:
    assert parse_rules(default_text()) == default_rules()
    assert default_rules().version.startswith("verdict-")


def test_version_depends_on_content_not_form() -> None:
    same = '# a comment\nname = "plain"\nweights = { "verdict" = 1 }\n'
    assert parse_rules(same).version == parse_rules(PLAIN).version
    for other in (PLAIN.replace("1.0", "1.5"), PLAIN.replace('"plain"', '"other"'), PLAIN + "[clip]\nmax = 1\n"):
        assert parse_rules(other).version != parse_rules(PLAIN).version


def test_step_components_can_be_weighted() -> None:
    rules = parse_rules('name = "steps"\n[weights]\nstep_1 = 0.25\nstep_12 = 0.5\nsteps_begun = 1\n')
    assert score({"step_1": 1.0, "step_2": 1.0, "steps_begun": 2.0}, rules) == 2.25


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("", "is missing"),
        ('name = "a"\n', "weights is missing"),
        ('name = "a"\nwieghts = 1\n', "unknown key 'wieghts'; the nearest one is 'weights'"),
        ('name = "a"\n[weights]\nverdct = 1\n', "no component 'verdct'; the nearest one is 'verdict'"),
        ('name = "a"\n[weights]\nplugin.x = 1\n', "write plugin.NAME.KEY"),
        (PLAIN + "plugin = 1\n", "no component 'plugin'; write plugin.NAME.KEY"),
        (PLAIN + "plugin.'a b'.c = 1\n", "no component 'plugin.a b.c'"),
        (PLAIN + "plugin.a.b = 1\n'plugin.a.b' = 2\n", "plugin.a.b occurs twice"),
        (PLAIN + "step_0 = 1\n", "no component 'step_0'"),
        (PLAIN + "plugin" + ".a" * 30_000 + " = 1\n", "more than 16 parts"),
        ("[" + "a . " * 15_000 + "a]\n", "more than 16 parts"),
        ('name = "a"\n[weights]\nverdict = nan\n', "finite"),
        ('name = "a"\n[weights]\nverdict = inf\n', "finite"),
        ('name = "a"\n[weights]\nverdict = 1e9\n', "less than or equal"),
        ('name = "a"\n[weights]\nverdict = "1"\n', "number"),
        ('name = "a"\n[weights]\nverdict = true\n', "number"),
        ('name = "a"\n[weights]\n', "at least 1"),
        ('name = "A b"\n[weights]\nverdict = 1\n', "name: "),
        (PLAIN + "[transforms.verdict]\novr = 1\n", "'transforms.verdict.ovr'; the nearest one is 'over'"),
        (
            PLAIN + "[transforms.verdict]\nper = 0\n",
            "transforms.verdict.per: should be greater than or equal to 0.000001",
        ),
        (PLAIN + "[transforms.verdict]\nper = 1e-310\n", "greater than or equal to 0.000001"),
        (PLAIN + "[transforms.verdict]\nper = 1e13\n", "less than or equal to 1"),
        (PLAIN + "[transforms.style_new]\nover = 1\n", "style_new has no weight"),
        (PLAIN + "[clip]\nmin = 2\nmax = 1\n", "min is above max"),
        (PLAIN + "[clip]\nmn = 2\n", "'clip.mn'; the nearest one is 'min'"),
        (PLAIN + "effort = 1\n", "effort needs a table"),
        (PLAIN + "[effort]\nk = 0\nq = 1\nweights = {}\n", "effort.k: should be greater than or equal to "),
        (PLAIN + "[effort]\nk = 1\nq = -1\nweights = {}\n", "effort.q: should be greater"),
        (PLAIN + "[effort]\nk = 1\nq = 1\nweights = { turn = 1 }\n", "the nearest one is 'turns'"),
        (PLAIN + '[gate]\ncomponent = "effort"\n', "gate.component: there is no component 'effort'"),
        (PLAIN + '[gate]\ncomponent = "resolved"\notherwise = ["style_new"]\n', "style_new has no weight"),
        ("name = ", "not TOML"),
        ("name = " + "9" * 9000, "not TOML"),
        ("a = " + "[" * 5000, "the rules are n"),
        ("#" * 70_000, "at most 65536"),
    ],
)
def test_invalid_rules_message_suggests_similar_name(text: str, said: str) -> None:
    with pytest.raises(BadRules, match=re.escape(said)) as caught:
        parse_rules(text)
    assert "\n" not in str(caught.value)


@given(st.text())
def test_any_text_is_parsed_or_refused(text: str) -> None:
    with pytest.raises(BadRules):
        parse_rules(text + "\n[")


def test_plugin_components_have_prefixed_names() -> None:
    dotted = parse_rules(PLAIN + "plugin.length.words = 0.5\n")
    quoted = parse_rules(PLAIN + '"plugin.length.words" = 0.5\n')
    assert dotted == quoted
    assert dotted.weights["plugin.length.words"] == 0.5


def test_rules_of_the_page_are_the_example() -> None:
    text = (ROOT / "farm/examples/careful.toml").read_text()
    page = (ROOT / "farm/docs/rewards.md").read_text()
    assert f"```toml\n{text}```" in page
    rules = parse_rules(text)
    worked = {
        "verdict": 1.0,
        "resolved": 1.0,
        "style_new": 5.0,
        "effort_completion_tokens": 4000.0,
        "effort_calls": 20.0,
    }
    assert f"/ 0.001 = {score(worked, rules):.2f}." in page
    failed = {"verdict": 0.0, "resolved": 0.0, "style_new": 5.0, "misuse_malformed": 2.0}
    assert score(failed, rules) == -0.1


def test_all_components_are_documented() -> None:
    page = (ROOT / "farm/docs/components.md").read_text()
    assert [name for name in COMPONENTS if f"| `{name}` |" not in page] == []
