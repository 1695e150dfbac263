"""Modules that are loaded when they are used for the first time."""

import importlib
from types import ModuleType
from typing import Any


class _LazyModule(ModuleType):
    def __getattr__(self, name: str) -> Any:
        module = importlib.import_module(self.__name__)
        self.__dict__.update({key: value for key, value in vars(module).items() if not key.startswith("__")})
        return getattr(module, name)


def lazy_module(name: str) -> Any:
    """A stand-in for a module, which loads it for the first attribute that is read.

    From then on reading an attribute costs what it costs of the module itself. Threads may share it.
    """
    return _LazyModule(name)
