"""Image specs as frozen values: what a document that has been judged becomes."""

from __future__ import annotations

import dataclasses
import functools
from typing import Any, cast

import cattrs
from cattrs.gen import make_dict_structure_fn, override

from nvllm.core.canonical import Json
from nvllm.core.spec import (
    Alias,
    BlessRules,
    CommitSource,
    DebianBase,
    DeviceCode,
    DirectoryModel,
    Exclusion,
    GpuNeed,
    HostNeed,
    HubModel,
    ImageSpec,
    Lacking,
    Limits,
    PatchChoice,
    Probe,
    Profile,
    PythonSet,
    RegistryBase,
    Runtime,
    VllmPin,
    Waiver,
)

_UNITS = {"KiB": 2**10, "MiB": 2**20, "GiB": 2**30}

_SIZES = {Limits: ("memory", "shared_memory", "temporary"), HostNeed: ("memory_available",)}
"""Fields that are sizes: ``6GiB`` in the spec, bytes in the value."""


def structure(document: Json) -> ImageSpec:
    """Return the spec that DOCUMENT says. It must fit the schema: nothing is judged here."""
    return _converter().structure(document, ImageSpec)


def _size(value: int | str, _: object) -> int:
    if isinstance(value, int):
        return value
    return int(value[:-3]) * _UNITS[value[-3:]]


@functools.cache
def _converter() -> cattrs.Converter:
    """Return what makes the frozen values from a document that has been judged.

    Only field names are translated, ``start_timeout`` from ``start-timeout``; the keys of mappings such as
    ``arguments`` are the user's own and stay as they are.
    """
    converter = cattrs.Converter(detailed_validation=False)
    converter.register_structure_hook_func(lambda cls: cls == bool | int | float | str, lambda value, _: value)
    # from the inside out: a class is compiled with the functions of the classes that it holds
    converter.register_structure_hook_func(
        lambda cls: cls == DebianBase | RegistryBase,
        lambda value, _: converter.structure(value, {"debian": DebianBase, "registry": RegistryBase}[value["kind"]]),
    )
    converter.register_structure_hook_func(
        lambda cls: cls == DirectoryModel | HubModel,
        lambda value, _: converter.structure(
            value, {"directory": DirectoryModel, "huggingface": HubModel}[value["kind"]]
        ),
    )
    inner = (DebianBase, RegistryBase, CommitSource, VllmPin, Exclusion, Alias, PatchChoice, Runtime)
    inside = (
        *inner,
        DirectoryModel,
        HubModel,
        PythonSet,
        GpuNeed,
        Limits,
        HostNeed,
        Probe,
        Waiver,
        BlessRules,
        Profile,
        Lacking,
    )
    for cls in (*inside, DeviceCode, ImageSpec):
        converter.register_structure_hook(cls, _structure_fn(cls, converter))
    return converter


def _structure_fn(cls: type[Any], converter: cattrs.Converter) -> Any:
    names = {
        field.name: override(
            rename=field.name.replace("_", "-"),
            struct_hook=_size if field.name in _SIZES.get(cls, ()) else None,
        )
        for field in dataclasses.fields(cls)
    }
    return cast("Any", make_dict_structure_fn)(cls, converter, **names)
