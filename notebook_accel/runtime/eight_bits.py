"""Functions of Accelerate's about layers that compute in 8 bits, for models prepared by hand."""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Any

from torch import nn

from notebook_accel.config.fp8 import AORecipeKwargs, refuse_backend
from notebook_accel.strategies.fp8 import EightBits, choose_layers, convert_layer, fits


def filter_first_and_last_linear_layers(module: nn.Module, fqn: str) -> bool:
    """Tell whether the layer ``fqn`` of the model ``module`` computes in 8 bits by the usual rule.

    Of a layer alone only its sizes tell.
    """
    if isinstance(module, nn.Linear):
        return fits(module)
    return fqn in choose_layers(module)[0]


def convert_model_to_fp8_ao(
    model: nn.Module,
    config: Any = None,
    module_filter_func: Callable[..., bool] | None = filter_first_and_last_linear_layers,
) -> nn.Module:
    """Let the linear layers of ``model`` compute in 8 bits through torchao, in place.

    ``prepare`` does it under ``mixed_precision="fp8"``. ``config`` is a ``Float8LinearConfig``,
    taken as it is.

    Errors: MissingPackage without torchao.
    """
    refuse_backend("ao")
    is_usual = module_filter_func in (None, filter_first_and_last_linear_layers)
    wanted = None if is_usual else module_filter_func
    if config is None:
        EightBits(AORecipeKwargs(module_filter_func=wanted), _device(model)).convert(model)
        return model
    for name in choose_layers(model, wanted)[0]:
        convert_layer(model.get_submodule(name), config)
    return model


def has_transformer_engine_layers(model: nn.Module) -> bool:
    """Tell whether ``model`` has layers of TransformerEngine's."""
    library = sys.modules.get("transformer_engine.pytorch")  # not imported: nobody has one
    kinds = tuple(
        getattr(library, name) for name in ("LayerNorm", "Linear", "TransformerLayer") if library
    )
    return any(isinstance(one, kinds) for one in model.modules())


def convert_model(model: nn.Module, to_transformer_engine: bool = True, **kinds: bool) -> nn.Module:
    """Refuse: layers of TransformerEngine's are not made here.

    Errors: MissingPackage or NotHere, naming the way through torchao.
    """
    refuse_backend("te")
    raise AssertionError("TransformerEngine is refused")


def apply_fp8_autowrap(model: nn.Module, fp8_recipe_handler: Any) -> nn.Module:
    """Refuse, as ``convert_model`` does: TransformerEngine does not compute here."""
    return convert_model(model)


def contextual_fp8_autocast(
    model_forward: Any, fp8_recipe: Any, use_during_eval: bool = False
) -> Any:
    """Refuse, as ``convert_model`` does: TransformerEngine does not compute here."""
    return convert_model(nn.Identity())


def _device(model: nn.Module) -> Any:
    return next(model.parameters()).device
