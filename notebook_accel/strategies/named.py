"""Which model a name stands for, made on the meta device.

A model is named by a function that makes it (``package.module:function``, ``model.py:function``),
by a class, or by a configuration of transformers or timm.
"""

from __future__ import annotations

import contextlib
import importlib
import importlib.util
import os
import sys
import traceback
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import torch
from torch import nn

from notebook_accel.config.words import kind_of
from notebook_accel.errors import ConfigError, MissingPackage, message_of
from notebook_accel.events.lines import THE_PERSON, US, owner_of, place_of


def build(name: str, library: str | None, trust: bool) -> tuple[nn.Module, Any, Any]:
    """Make the model that ``name`` stands for, on the meta device.

    Gives it with its configuration and example inputs, where there are any.
    """
    if os.getcwd() not in sys.path:
        sys.path.insert(0, os.getcwd())
    if library == "timm":
        timm = _library("timm")
        with torch.device("meta"):
            return timm.create_model(name, pretrained=False), None, None
    if library is None:
        factory = _factory(name)
        if factory is not None:
            return made(factory, name)
    return (*_from_config(name, trust), None)


def _factory(name: str) -> Callable[[], Any] | None:
    """Find the function that ``name`` names; None if it names a configuration."""
    home, _, attribute = name.rpartition(":")
    if home.endswith(".py") or (not home and name.endswith(".py")):
        path = Path(home or name)
        if not path.is_file():
            raise ConfigError(
                f"there is no file {path}",
                "a model is named as file.py:function",
                "check the path; it is taken from the working directory",
            )
        spec = importlib.util.spec_from_file_location(path.stem, path)
        assert spec is not None and spec.loader is not None
        module = importlib.util.module_from_spec(spec)
        sys.modules[path.stem] = module
        with _of_the_person(str(path)):
            spec.loader.exec_module(module)
        return _attribute(module, attribute if home else "", str(path))
    if home:
        return _attribute(_imported(home), attribute, home)
    head, _, tail = name.rpartition(".")
    if head and "/" not in name and not Path(name).exists() and _exists(head):
        return _attribute(_imported(head), tail, head)
    return None


def _exists(module: str) -> bool:
    try:
        return importlib.util.find_spec(module) is not None
    except (ImportError, ValueError):
        return False


def _imported(module: str) -> Any:
    try:
        with _of_the_person(module):
            return importlib.import_module(module)
    except ModuleNotFoundError as error:
        raise ConfigError(
            f"there is no module {module}: {error}",
            "a model is named as package.module:function, seen from the working directory",
            "run the command where the package lies, or install it",
        ) from None


def _attribute(module: Any, name: str, home: str) -> Callable[[], Any]:
    found = getattr(module, name, None) if name else None
    if callable(found):
        return found  # type: ignore[no-any-return]
    made_here = [
        key
        for key, value in vars(module).items()
        if callable(value) and getattr(value, "__module__", "") == module.__name__
    ]
    raise ConfigError(
        f"{home} has no function or class {name!r}" if name else f"{home}: which model?",
        f"it has {', '.join(made_here[:8])}" if made_here else "nothing is defined in it",
        f"write {home}:{made_here[0] if made_here else 'function'}, which takes no arguments and "
        "returns the model, or (model, example input)",
    )


def made(factory: Callable[[], Any], name: str) -> tuple[nn.Module, Any, Any]:
    """Call what makes the model, on the meta device; give its configuration and input with it.

    Errors: ConfigError for a function that cannot be called so, raises, or makes something else.
    """
    try:
        with torch.device("meta"):
            built = factory()
    except TypeError as error:
        if error.__traceback__ is not None and error.__traceback__.tb_next is not None:
            raise _raised(name, error) from error  # not by the call: by what it calls
        raise ConfigError(
            f"{name} cannot be called without arguments: {error}",
            "the function that makes the model is called as it is",
            f"write one that calls it: def make(): return {name.rpartition(':')[2]}(...)",
        ) from error
    except (RuntimeError, NotImplementedError) as error:
        if "meta" not in str(error):
            raise _raised(name, error) from error
        with _of_the_person(name):
            built = factory()  # it looks at values while it builds: then in real memory
    except Exception as error:
        raise _raised(name, error) from error
    model, inputs = built if isinstance(built, tuple) else (built, None)
    if not isinstance(model, nn.Module):
        raise ConfigError(
            f"{name} made {kind_of(model)}",
            "only a torch.nn.Module has parameters to count",
            "return the model, or (model, example input)",
        )
    return model, getattr(model, "config", None), inputs


@contextlib.contextmanager
def _of_the_person(name: str) -> Iterator[None]:
    """Run code of the person's; what it raises is told by its own line."""
    try:
        yield
    except ModuleNotFoundError:
        raise
    except Exception as error:
        raise _raised(name, error) from error


def _raised(name: str, error: Exception) -> ConfigError:
    """Tell what the person's code raised, and in which of its lines; no frame of ours says more."""
    frames = traceback.extract_tb(error.__traceback__)
    own = [one for one in frames if owner_of(one.filename) == THE_PERSON]
    others = [one for one in frames if owner_of(one.filename) != US]
    last = next(reversed(own or others), None)
    where = ""
    if isinstance(error, SyntaxError) and error.filename:
        where = f"{place_of(error.filename, error.lineno or 0)}: {(error.text or '').strip()}"
    elif last is not None:
        where = f"{place_of(last.filename, last.lineno or 0)}, in {last.name}: {last.line}"
    return ConfigError(
        f"{name} raised {type(error).__name__}: {message_of(error)}",
        where,
        "mend it; the command only calls it",
    )


def _from_config(name: str, trust: bool) -> tuple[nn.Module, Any]:
    transformers = _library("transformers")
    try:
        config = transformers.AutoConfig.from_pretrained(
            name, trust_remote_code=trust, local_files_only=True
        )
    except (OSError, ValueError) as error:
        there = "mend its config.json" if Path(name).exists() else "download it first"
        raise ConfigError(
            f"{name} is no model here: {str(error).splitlines()[0][:200]}",
            "it is no module that can be imported, and was taken for a configuration of "
            "transformers, in a folder or already downloaded",
            f"{there}, or name a function that makes the model: file.py:function",
        ) from error
    wanted = (getattr(config, "architectures", None) or [""])[0]
    known = getattr(transformers, wanted, None) if wanted else None
    with torch.device("meta"):
        if known is not None:
            return known(config), config
        return transformers.AutoModel.from_config(config, trust_remote_code=trust), config


def _library(name: str) -> Any:
    try:
        return importlib.import_module(name)
    except ImportError:
        raise MissingPackage(
            f"{name} is not installed",
            "the model was taken for one of its configurations",
            f"pip install {name}; or name a function that makes the model: file.py:function",
        ) from None
