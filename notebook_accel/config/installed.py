"""Which optional packages are installed; looking imports none of them."""

from __future__ import annotations

import functools
import importlib.util
import operator
from collections.abc import Callable
from importlib import metadata
from typing import Any, TypeVar

from notebook_accel.errors import ConfigError, MissingPackage

Call = TypeVar("Call", bound=Callable[..., Any])

_COMPARE = {
    ">": operator.gt,
    ">=": operator.ge,
    "<": operator.lt,
    "<=": operator.le,
    "==": operator.eq,
    "!=": operator.ne,
}
_PACKAGES = {
    "4bit_bnb": ("bitsandbytes",),
    "8bit_bnb": ("bitsandbytes",),
    "aim": ("aim",),
    "amdsmi": ("amdsmi",),
    "bitsandbytes_multi_backend": ("bitsandbytes",),
    "bnb": ("bitsandbytes",),
    "boto3": ("boto3",),
    "clearml": ("clearml",),
    "comet_ml": ("comet_ml",),
    "datasets": ("datasets",),
    "deepspeed": ("deepspeed",),
    "dvclive": ("dvclive",),
    "import_timer": ("import_timer",),
    "lomo": ("lomo_optim",),
    "matplotlib": ("matplotlib",),
    "megatron_lm": ("megatron",),
    "mlflow": ("mlflow",),
    "msamp": ("msamp",),
    "pandas": ("pandas",),
    "peft": ("peft",),
    "pippy": ("torch.distributed.pipelining",),
    "pynvml": ("pynvml",),
    "pytest": ("pytest",),
    "sagemaker": ("sagemaker",),
    "schedulefree": ("schedulefree",),
    "swanlab": ("swanlab",),
    "tensorboard": ("tensorboard", "tensorboardX"),
    "timm": ("timm",),
    "torch_xla": ("torch_xla",),
    "torchao": ("torchao",),
    "torchdata": ("torchdata",),
    "torchdata_stateful_dataloader": ("torchdata.stateful_dataloader",),
    "torchvision": ("torchvision",),
    "trackio": ("trackio",),
    "transformer_engine": ("transformer_engine",),
    "transformer_engine_mxfp8": ("transformer_engine",),
    "transformers": ("transformers",),
    "triton": ("triton",),
    "wandb": ("wandb",),
}


def is_installed(package: str) -> bool:
    """Tell whether ``package`` (or a module in it) could be imported."""
    try:
        return importlib.util.find_spec(package) is not None
    except ModuleNotFoundError:  # the package that should hold the module
        return False


def version_of(package: str) -> str:
    """Give the version of an installed package; "" where it is not installed."""
    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        return ""


@functools.cache
def availability(name: str) -> Callable[..., bool] | None:
    """Give the function ``is_{name}_available``; None for a package that nobody asks about."""
    packages = _PACKAGES.get(name)
    if packages is None:
        return None

    def available(min_version: str | None = None) -> bool:
        there = next(filter(is_installed, packages), None)
        if there is None or min_version is None:
            return there is not None
        return compare_versions(there, ">=", min_version)

    available.__name__ = available.__qualname__ = f"is_{name}_available"
    available.__doc__ = (
        f"Tell whether {' or '.join(packages)} is installed, ``min_version`` or a newer one."
    )
    return available


def deepspeed_required(func: Call) -> Call:
    """Decorate a function that needs DeepSpeed.

    Errors: MissingPackage (an ImportError) when it is called without.
    """
    return _requiring("deepspeed", func)


def torchao_required(func: Call) -> Call:
    """Decorate a function that needs torchao.

    Errors: MissingPackage (an ImportError) when it is called without.
    """
    return _requiring("torchao", func)


def _requiring(package: str, func: Call) -> Call:
    @functools.wraps(func)
    def wrapped(*args: Any, **kwargs: Any) -> Any:
        if not is_installed(package):
            raise MissingPackage(
                f"{func.__name__} needs {package}, which is not installed",
                "it is an optional package",
                f"pip install {package}",
            )
        return func(*args, **kwargs)

    return wrapped  # type: ignore[return-value]


def is_rich_available() -> bool:
    """Tell whether rich draws tracebacks; nothing here asks it to."""
    return False


def compare_versions(library_or_version: str, operation: str, requirement_version: str) -> bool:
    """Compare an installed package's version, or a version, with another: ``("torch", ">=", "2")``.

    Errors: ConfigError (a ValueError) for an operation that is none of ">", ">=", "<", "<=", "==",
    "!=".
    """
    if operation not in _COMPARE:
        raise ConfigError(
            f"compare_versions got {operation!r}",
            "versions can be compared by " + ", ".join(_COMPARE),
            f'write compare_versions({library_or_version!r}, ">=", {requirement_version!r})',
        )
    from packaging.version import parse

    given = library_or_version
    if not given[:1].isdigit():
        given = metadata.version(given)
    return bool(_COMPARE[operation](parse(parse(given).base_version), parse(requirement_version)))


def is_torch_version(operation: str, version: str) -> bool:
    """Compare the installed torch's version: ``is_torch_version(">=", "2.4")``."""
    return compare_versions("torch", operation, version)
