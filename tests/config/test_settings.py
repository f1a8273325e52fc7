"""The one list of settings: whole, and the same wherever it shows."""

from __future__ import annotations

import argparse
import ast
import re
from collections import Counter
from collections.abc import Iterator
from dataclasses import fields
from pathlib import Path

import pytest

import notebook_accel
from notebook_accel.config import page
from notebook_accel.config.options import add_options, chosen
from notebook_accel.config.schema import LaunchSettings
from notebook_accel.config.settings import (
    SECTIONS,
    SETTINGS,
    Setting,
    by_key,
    by_variable,
)
from notebook_accel.config.sources import Source
from notebook_accel.config.values import check, read
from tests.config.accelerates_names import (
    BLOCKS,
    COMMANDS_OWN,
    KEYS,
    NESTED_KEYS,
    OPTIONS,
    PLACES,
    VARIABLES,
)

ROOT = Path(notebook_accel.__file__).parent
# Setting of each option name, written with underscores and without dashes.
BY_FLAG = {
    name: one
    for one in SETTINGS.values()
    if one.has_option
    for name in (one.name, *one.flags, *(flag for word in one.words for flag in word.flags))
}


def test_every_key_of_accelerates_files_belongs_to_a_setting() -> None:
    assert (KEYS | NESTED_KEYS) - set(by_key()) == set()
    assert {key.split(".")[0] for key in by_key() if "." in key} == BLOCKS


def test_every_option_of_accelerates_launch_belongs_to_a_setting() -> None:
    switched_off = {f"no_{name}" for name, one in BY_FLAG.items() if one.is_switch}
    assert OPTIONS - COMMANDS_OWN - set(BY_FLAG) - switched_off == set()


def test_every_variable_of_accelerates_belongs_to_a_setting() -> None:
    assert VARIABLES - set(by_variable()) == set()


def test_no_variable_that_says_who_a_process_is_counts_as_a_setting() -> None:
    assert PLACES & set(by_variable()) == set()


@pytest.mark.parametrize("names", ["flags", "keys", "variables"])
def test_each_name_belongs_to_one_setting_only(names: str) -> None:
    def of(one: Setting) -> set[str]:
        words = one.words
        return {
            "flags": {one.name, *one.flags, *(flag for word in words for flag in word.flags)},
            "keys": {one.name, one.yaml, *one.keys, *(word.key for word in words)} - {""},
            "variables": {*one.env, *(word.env for word in words)} - {""},
        }[names]

    counts = Counter(name for one in SETTINGS.values() for name in of(one))
    assert {name: count for name, count in counts.items() if count > 1} == {}


def test_the_package_reads_no_variable_of_accelerates_that_is_no_setting() -> None:
    family = re.compile(r"(ACCELERATE|FSDP|PARALLELISM_CONFIG|MEGATRON_LM)_[A-Z0-9_]*[A-Z0-9]")
    found = {
        node.value
        for path in ROOT.rglob("*.py")
        for node in ast.walk(ast.parse(path.read_text()))
        if isinstance(node, ast.Constant) and isinstance(node.value, str)
        if family.fullmatch(node.value)
    }
    # names of Accelerate's Python constants, which no process has in its environment
    constants = {"FSDP_AUTO_WRAP_POLICY", "FSDP_SHARDING_STRATEGY", "FSDP_MODEL_NAME"}
    assert found - set(by_variable()) - constants - set(dir(notebook_accel.utils)) == set()


def disagreements(one: Setting) -> Iterator[str]:
    if one.section not in SECTIONS:
        yield f"unknown section {one.section}"
    if not one.help or one.help.endswith("."):
        yield "its help is no phrase"
    if one.kind not in ("str", "int", "float", "bool", "list", "dict"):
        yield f"unknown kind {one.kind}"
    if not set(one.coming) <= {*one.choices, True}:
        yield "what is to come is no choice"
    if one.default is not None and check(one, one.default) != one.default:
        yield "its default is impossible"
    if not set(one.when) <= set(SETTINGS):
        yield "it is asked under a condition that does not exist"
    if not all(word.value in one.choices for word in one.words):
        yield "a word of its stands for no choice"
    if one.is_switch and one.kind != "bool":
        yield "only yes or no can be switched"


def test_every_declaration_agrees_with_itself() -> None:
    assert [f"{one.name}: {what}" for one in SETTINGS.values() for what in disagreements(one)] == []


def test_every_choice_can_be_read_in_any_case() -> None:
    for one in SETTINGS.values():
        for choice in one.choices:
            for text in (str(choice), str(choice).lower(), str(choice).upper()):
                assert read(one, text, Source("option", one.name)) == choice
        for text, value in one.spellings.items():
            assert read(one, text, Source("option", one.name)) == value


def test_every_setting_with_an_option_can_be_given_by_it() -> None:
    examples = {"int": "2", "float": "0.5", "bool": "true", "list": "a,b", "dict": '{"a": 1}'}
    for name, one in SETTINGS.items():
        if not one.has_option:
            continue
        text = str(one.choices[-1]) if one.choices else examples.get(one.kind, "word")
        text = "true,false,true" if len(one.env) > 1 else text
        words = [f"--{name}"] if one.is_switch else [f"--{name.replace('_', '-')}", text]
        parser = argparse.ArgumentParser(allow_abbrev=False)
        add_options(parser)
        found = chosen(parser.parse_args(words))
        assert set(found) == {name}, words
        assert check(one, found[name][0]) == found[name][0]


def test_the_page_in_the_docs_is_what_the_declarations_say() -> None:
    committed = ROOT.parent / "docs" / "settings.md"
    assert committed.read_text() == page.page(), (
        "write it anew: python -m notebook_accel.config.page > docs/settings.md"
    )


def test_the_page_names_every_setting_option_key_and_variable() -> None:
    words = set(re.findall(r"`(?:--)?([\w.]+)", page.page()))
    assert {*SETTINGS, *BY_FLAG, *by_key(), *by_variable()} - words == set()


def test_a_call_of_the_launcher_has_the_settings_of_the_list() -> None:
    for field in fields(LaunchSettings):
        one = SETTINGS[field.name]
        assert field.default == one.default
        assert field.metadata["help"] == one.help
        assert field.metadata["choices"] == tuple(c for c in one.choices if c not in one.coming)


def test_the_wizard_asks_in_questions() -> None:
    asked = [one for one in SETTINGS.values() if one.question]
    assert len(asked) > 40
    assert all(one.question[0].isupper() for one in asked)
