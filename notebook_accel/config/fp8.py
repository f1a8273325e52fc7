"""How linear layers compute in 8 bits: Accelerate's recipes, and which library is asked to do it.

torchao does it here. TransformerEngine and MS-AMP are known by name: who asks for one is told what
computes the same.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, fields
from typing import Any

from notebook_accel.config.filling import fill
from notebook_accel.config.handlers import Handlers, KwargsHandler
from notebook_accel.config.installed import is_installed
from notebook_accel.config.resolve import RunConfig
from notebook_accel.config.schema import check_choice
from notebook_accel.config.settings import SETTINGS
from notebook_accel.errors import ConfigError, MissingPackage, NotHere

_LIBRARIES = {"ao": "torchao", "te": "transformer_engine", "msamp": "msamp"}
_NAMES = {"ao": "torchao", "te": "TransformerEngine", "msamp": "MS-AMP"}
_IN_CONFIG = ("pad_inner_dim", "enable_fsdp_float8_all_gather")  # of torchao's own


@dataclass
class AORecipeKwargs(KwargsHandler):
    """How linear layers compute in 8 bits through torchao.

    ``module_filter_func(layer, name)`` says of each linear layer whether it does; without it all
    do but the first, the last, and those whose sizes are no multiples of 16. ``pad_inner_dim`` pads
    batches to such a multiple, ``enable_fsdp_float8_all_gather`` lets FSDP gather weights in 8
    bits; None is what ``ACCELERATE_FP8_*`` or a launch says, else yes. ``config`` is a
    ``torchao.float8.Float8LinearConfig`` in place of ours, which rounds scales down to powers of
    two: one rank and many then compute the same numbers.

    Errors: ConfigError for a ``config`` beside the settings that are in it.
    Source: Micikevicius et al. 2022, "FP8 formats for deep learning"; torchao.float8.
    """

    config: Any = None
    module_filter_func: Callable[[Any, str], bool] | None = None
    pad_inner_dim: bool | None = None
    enable_fsdp_float8_all_gather: bool | None = None

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.config is None:
            fill(self, _settings(_IN_CONFIG))
            return
        if not all(hasattr(self.config, name) for name in _IN_CONFIG):
            raise ConfigError(
                f"AORecipeKwargs(config={self.config!r:.80})",
                "it is torchao's own configuration, in place of ours",
                "write config=Float8LinearConfig(...), or leave it out",
            )
        for name in _IN_CONFIG:
            said, own = getattr(self, name), getattr(self.config, name)
            if said is not None and said != own:
                raise ConfigError(
                    f"AORecipeKwargs({name}={said!r}) with a config that has {name}={own!r}",
                    "both say it, and nobody could say which of them counts",
                    f"write Float8LinearConfig({name}={said!r}), or leave config out",
                )


@dataclass
class TERecipeKwargs(KwargsHandler):
    """How TransformerEngine would compute; what is None is read from ``ACCELERATE_FP8_*``.

    An Accelerator in fp8 refuses it, and names the way through torchao.

    Errors: ConfigError for words that TransformerEngine does not have.
    Source: transformer_engine.common.recipe.DelayedScaling, whose arguments these are.
    """

    use_autocast_during_eval: bool | None = None
    margin: int | None = None
    interval: int | None = None
    fp8_format: str | None = None
    amax_history_len: int | None = None
    amax_compute_algo: str | None = None
    override_linear_precision: Any = None
    use_mxfp8_block_scaling: bool | None = None

    def __post_init__(self) -> None:
        super().__post_init__()
        fill(self, _settings(one.name for one in fields(TERecipeKwargs)))
        self.fp8_format = _word(self.fp8_format, "fp8_format")
        self.amax_compute_algo = _word(self.amax_compute_algo, "amax_compute_algo")


@dataclass
class MSAMPRecipeKwargs(KwargsHandler):
    """How MS-AMP would compute; an Accelerator in fp8 refuses it as it does TERecipeKwargs.

    Errors: ConfigError for a level that MS-AMP does not have.
    """

    opt_level: str | None = None

    def __post_init__(self) -> None:
        super().__post_init__()
        fill(self, _settings(["opt_level"]))
        self.opt_level = _word(self.opt_level, "opt_level")


@dataclass
class FP8RecipeKwargs(KwargsHandler):
    """The older name for the recipes together; ``backend`` is "ao", "te" or "msamp".

    Errors: ConfigError for another backend, and as the recipes.
    """

    backend: str | None = None
    use_autocast_during_eval: bool | None = None
    margin: int | None = None
    interval: int | None = None
    fp8_format: str | None = None
    amax_history_len: int | None = None
    amax_compute_algo: str | None = None
    override_linear_precision: Any = None
    use_mxfp8_block_scaling: bool | None = None
    opt_level: str | None = None

    def __post_init__(self) -> None:
        super().__post_init__()
        fill(self, _settings(one.name for one in fields(FP8RecipeKwargs)))
        if self.backend is not None:
            self.backend = _word(self.backend, "backend").upper()  # as Accelerate's enum
        self.fp8_format = _word(self.fp8_format, "fp8_format")
        self.amax_compute_algo = _word(self.amax_compute_algo, "amax_compute_algo")
        self.opt_level = _word(self.opt_level, "opt_level")


_RECIPES: dict[type[KwargsHandler], str | None] = {
    AORecipeKwargs: "ao",
    TERecipeKwargs: "te",
    MSAMPRecipeKwargs: "msamp",
    FP8RecipeKwargs: None,
}


def chosen_recipe(handlers: Handlers, asked: RunConfig) -> AORecipeKwargs | None:
    """Find how a run in fp8 computes; None for other precisions, whose recipes only lie ready.

    Errors: ConfigError for two recipes; MissingPackage, or NotHere, where nothing here can do it.
    """
    if asked.mixed_precision != "fp8":
        return None
    given = [one for one in handlers.given if type(one) in _RECIPES]
    if len(given) > 1:
        first, second = (type(one).__name__ for one in given[:2])
        raise ConfigError(
            f"kwargs_handlers has {first} and {second}",
            "each says how fp8 computes, and nobody could say which of them counts",
            "leave one of them out",
        )
    recipe = given[0] if given else None
    named = None if recipe is None else _RECIPES[type(recipe)] or getattr(recipe, "backend", None)
    refuse_backend((named or asked.fp8_backend or "ao").lower())
    return recipe if isinstance(recipe, AORecipeKwargs) else AORecipeKwargs()


def refuse_backend(backend: str) -> None:
    """Refuse a library that cannot compute in 8 bits for us here; torchao can, if it is installed.

    Errors: MissingPackage for one that is not installed; NotHere for one that is, and is not used.
    """
    name, package = _NAMES[backend], _LIBRARIES[backend]
    instead = (
        "fp8_backend='ao' (AORecipeKwargs()) computes it through torchao: "
        "pip install 'notebook-accel[fp8]'"
    )
    if backend == "ao":
        instead = "pip install 'notebook-accel[fp8]', or write mixed_precision='bf16'"
    if not is_installed(package):
        raise MissingPackage(
            f"mixed_precision='fp8' through {name}, which is not installed",
            "torch has 8-bit numbers, and no layers that keep scales for them",
            instead,
        )
    if backend != "ao":
        raise NotHere(
            f"mixed_precision='fp8' through {name} asks for what is not here",
            f"{name} is installed, and this version computes in 8 bits through torchao only",
            instead,
        )


def refuse_without_library(asked: RunConfig) -> None:
    """Refuse a run in fp8 that no library here can compute; before any rank has started.

    Errors: MissingPackage; NotHere.
    """
    if asked.mixed_precision == "fp8":
        refuse_backend(asked.fp8_backend or "ao")


def _settings(names: Iterable[str]) -> dict[str, str]:
    """Name the setting of each field: the format's own name says already of what it is one."""
    return {name: name if name.startswith("fp8_") else f"fp8_{name}" for name in names}


def _word(value: Any, field: str) -> str:
    """Read one of a field's words, given in whatever case or as an enum."""
    choices = SETTINGS[_settings([field])[field]].choices
    word = str(getattr(value, "value", value))
    fitting = next((one for one in choices if one.lower() == word.lower()), word)
    check_choice(field, fitting, choices)
    return fitting
