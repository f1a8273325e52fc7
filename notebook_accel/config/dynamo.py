"""How models are compiled: Accelerate's settings for ``torch.compile``."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from notebook_accel.config.adoption import adopted
from notebook_accel.config.fields import check_kinds
from notebook_accel.config.filling import fill
from notebook_accel.config.kinds import DynamoBackend
from notebook_accel.errors import ConfigError

_SETTINGS = {
    "backend": "dynamo_backend",
    "mode": "dynamo_mode",
    "fullgraph": "dynamo_use_fullgraph",
    "dynamic": "dynamo_use_dynamic",
    "use_regional_compilation": "dynamo_use_regional_compilation",
}


@dataclass
class TorchDynamoPlugin:
    """How ``prepare`` compiles models; what is None is read from ``ACCELERATE_DYNAMO_*``.

    ``backend`` is one of DynamoBackend, a name that ``torch.compile`` knows, or a function; "no"
    compiles nothing. ``use_regional_compilation`` compiles the repeated blocks of a model one by
    one, which takes less time than the whole.

    Errors: ConfigError for an empty backend, and for options beside a mode.
    Source: torch.compile, whose arguments the others are.
    """

    backend: Any = None
    mode: str | None = None
    fullgraph: bool | None = None
    dynamic: bool | None = None
    options: dict[str, Any] | None = None
    disable: bool = False
    use_regional_compilation: bool | None = None

    def __post_init__(self) -> None:
        check_kinds(self)
        fill(self, _SETTINGS, defaults=False)  # None leaves it to torch.compile
        self.backend = DynamoBackend.NO if self.backend is None else _backend(self.backend)
        if self.options is not None and self.mode not in (None, "default"):
            raise ConfigError(
                f"TorchDynamoPlugin has mode={self.mode!r} and options",
                "a mode is a set of options, and torch.compile takes one of them",
                "write all of it into options, or leave options out",
            )

    @property
    def compiles(self) -> bool:
        """Whether there is anything to do."""
        return self.backend != DynamoBackend.NO and not self.disable

    def to_dict(self) -> dict[str, Any]:
        """Give all fields by name, the backend as ``torch.compile`` writes it."""
        name = self.backend if callable(self.backend) else str(self.backend).lower()
        return {**vars(self), "backend": name}

    def to_kwargs(self) -> dict[str, Any]:
        """Give the arguments of ``torch.compile`` that were set."""
        given = self.to_dict()
        usual = {"disable": False, "fullgraph": False, "mode": "default"}
        return {
            name: value
            for name, value in given.items()
            if name != "use_regional_compilation" and value not in (None, usual.get(name))
        }


def chosen_plugin(backend: Any, plugin: TorchDynamoPlugin | None) -> TorchDynamoPlugin:
    """Read the two ways in which a person can ask for compiled models.

    Errors: ConfigError when both are there.
    """
    plugin = adopted("dynamo_plugin", plugin, TorchDynamoPlugin)
    if plugin is None:
        return TorchDynamoPlugin(backend=backend)
    if backend is not None:
        raise ConfigError(
            f"dynamo_backend={backend!r} and dynamo_plugin are both given",
            "both name the compiler's backend, and nobody could say which of them counts",
            "write TorchDynamoPlugin(backend=...) and leave dynamo_backend out",
        )
    return plugin


def _backend(value: Any) -> Any:
    if callable(value):
        return value
    word = getattr(value, "value", value)
    if not isinstance(word, str):
        raise ConfigError(
            f"the compiler's backend is {value!r:.80}",
            "torch.compile takes the name of a backend, or a function that compiles a graph",
            'write dynamo_backend="inductor", or leave it out for no compilation',
        )
    word = word.strip()
    if not word:
        raise ConfigError(
            "the compiler's backend is an empty word",
            "torch.compile needs to know which backend compiles",
            'write dynamo_backend="inductor", or leave it out for no compilation',
        )
    return DynamoBackend(word.upper()) if word.upper() in DynamoBackend else word
