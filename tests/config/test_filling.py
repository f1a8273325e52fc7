"""Plugins whose fields are None: what the environment says, and what stays None."""

from __future__ import annotations

from dataclasses import dataclass

import pytest

from notebook_accel.config.dynamo import TorchDynamoPlugin
from notebook_accel.config.filling import fill
from notebook_accel.config.kinds import DynamoBackend
from notebook_accel.errors import ConfigError


@dataclass
class Plugin:
    steps: int | None = None
    precision: str | None = None


SETTINGS = {"steps": "gradient_accumulation_steps", "precision": "mixed_precision"}


def test_what_is_none_is_what_the_environment_says_and_else_the_default(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.delenv("ACCELERATE_MIXED_PRECISION", raising=False)
    monkeypatch.setenv("ACCELERATE_GRADIENT_ACCUMULATION_STEPS", "4")
    plugin, own, bare = Plugin(), Plugin(steps=2), Plugin()
    fill(plugin, SETTINGS)
    fill(own, SETTINGS)
    fill(bare, SETTINGS, defaults=False)
    assert (plugin, own, bare) == (Plugin(4, "no"), Plugin(2, "no"), Plugin(4, None))


def test_a_compiler_is_asked_for_by_variables(monkeypatch: pytest.MonkeyPatch) -> None:
    assert TorchDynamoPlugin().to_dict() == TorchDynamoPlugin(backend="no").to_dict()
    for name, text in {
        "BACKEND": "MyBackend", "MODE": "reduce-overhead", "USE_FULLGRAPH": "Yes",
        "USE_DYNAMIC": "0", "USE_REGIONAL_COMPILATION": "",
    }.items():  # fmt: skip
        monkeypatch.setenv(f"ACCELERATE_DYNAMO_{name}", text)
    found = TorchDynamoPlugin(mode="default")
    assert (found.backend, found.mode, found.fullgraph) == ("MyBackend", "default", True)
    assert (found.dynamic, found.use_regional_compilation) == (False, None)
    monkeypatch.setenv("ACCELERATE_DYNAMO_BACKEND", "INDUCTOR")
    assert TorchDynamoPlugin().backend == DynamoBackend.INDUCTOR
    monkeypatch.setenv("ACCELERATE_DYNAMO_USE_DYNAMIC", "perhaps")
    with pytest.raises(ConfigError, match="ACCELERATE_DYNAMO_USE_DYNAMIC=perhaps"):
        TorchDynamoPlugin()


def test_what_no_variable_says_of_a_compiler_stays_torchs_to_choose() -> None:
    plugin = TorchDynamoPlugin()
    assert (plugin.mode, plugin.fullgraph, plugin.dynamic) == (None, None, None)
    assert plugin.backend == DynamoBackend.NO and not plugin.compiles
