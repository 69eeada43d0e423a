"""The environment of an expression: functions, inputs with their types and sizes, and the names of types."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property

from extender.cel import types as t
from extender.cel.estimator import Sizes
from extender.cel.messages import MESSAGES
from extender.cel.overloads import Library

# Names of types, and the types that they stand for in type(x) == name and name{...}.
_STANDARD_TYPES: dict[str, t.Type] = {
    "bool": t.BOOL,
    "bytes": t.BYTES,
    "double": t.DOUBLE,
    "int": t.INT,
    "list": t.list_of(t.DYN),
    "map": t.map_of(t.DYN, t.DYN),
    "null_type": t.NULL,
    "string": t.STRING,
    "type": t.DYN,
    "uint": t.UINT,
    **{name: message.type for name, message in MESSAGES.items()},
    "optional_type": t.DYN,
    "net.IP": t.DYN,
    "net.CIDR": t.DYN,
}


@dataclass(frozen=True, eq=False)
class Environment:
    """The declarations that the checker, the estimator and the compiler use.

    `variables` are the types of the inputs that an expression can name. `inputs` are the names of the values that an
    evaluation takes, in the order of a frame: a binding may take more values than an expression can name.
    """

    functions: Library
    variables: Mapping[str, t.Type]
    inputs: tuple[str, ...]
    budget: int  # units that one evaluation may take
    structs: Mapping[str, Mapping[str, t.Type]] = field(default_factory=dict)  # fields by struct type
    sizes: Sizes = field(default_factory=dict)

    @cached_property
    def type_names(self) -> Mapping[str, t.Type]:
        """The types that an expression can name."""
        return _STANDARD_TYPES | {name: t.Type("struct", name) for name in self.structs}

    @cached_property
    def declarations(self) -> dict[str, t.Type]:
        """The types of all names: inputs and types."""
        return {**self.variables, **{name: t.type_of(type_) for name, type_ in self.type_names.items()}}
