"""The type check: it gives every node a type and every call its possible overloads, and collects all issues."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from operator import is_

from extender.cel import ast
from extender.cel import types as t
from extender.cel.cost import NODE_COST, OVERLOAD_COST, TYPE_COST, Work
from extender.cel.errors import Issue
from extender.cel.messages import MESSAGES
from extender.cel.types import Library, Overload

_LITERALS: dict[type, t.Type] = {
    bool: t.BOOL,
    int: t.INT,
    float: t.DOUBLE,
    str: t.STRING,
    bytes: t.BYTES,
    type(None): t.NULL,
}
_SIMPLE = frozenset({"bool", "bytes", "double", "int", "string", "uint", "duration", "timestamp", "struct"})
_NULLABLE = frozenset({"opaque", "struct", "any", "duration", "timestamp", "null", "wrapper"})
_MAX_NAMES = 8  # of a qualified name: google.protobuf.Duration has three
_CHARACTERS_A_STEP = 8  # of a message: an issue may show a large type
_STEPS_OF_A_TYPE = 4  # to make one


class Checker(ast.Visitor[t.Type]):
    """Checks one tree. `variables` are the declared names, `structs` the fields of the struct types.

    A method returns the type of its node, or `error` where it recorded an issue: one mistake gives one issue.
    """

    def __init__(
        self,
        library: Library,
        variables: Mapping[str, t.Type],
        structs: Mapping[str, Mapping[str, t.Type]],
        work: Work,
    ) -> None:
        self._library = library
        self._work = work
        self._variables = dict(variables)
        self._structs = structs
        self._substitution = Substitution(work)
        # Function, whether it is a member, and types of the arguments to the overloads that fit and the type of the
        # result; only without type variables.
        self._choices: dict[tuple[str, bool, tuple[t.Type, ...]], tuple[tuple[Overload, ...], t.Type]] = {}
        self._formats = 0  # calls of format around the node: there, the items of a literal may have different types
        self._visited = 0  # nodes
        self.issues: list[Issue] = []

    def visit(self, node: ast.Node) -> t.Type:
        self._work.spend(NODE_COST)
        before = self._visited
        node.type = type_ = self.method(node)(node)
        self._visited += 1
        node.size = self._visited - before
        return type_

    def settle(self, node: ast.Node) -> None:
        """Replace the type variables in the whole tree by the types that the check found for them."""
        for current in ast.walk(node):
            if current.type is not None:
                current.type = self._substitution.resolve(current.type, free_is_dyn=True)

    def _fail(self, node: ast.Node, problem: str) -> t.Type:
        self._substitution.spend(len(problem) // _CHARACTERS_A_STEP)
        self.issues.append(Issue(node.offset, problem))
        return t.ERROR

    def _undeclared(self, node: ast.Node, name: str) -> t.Type:
        return self._fail(node, f"undeclared reference to '{name}' (in container '')")

    # -- names and fields -----------------------------------------------------------------------------------

    def literal(self, node: ast.Literal) -> t.Type:
        return _LITERALS.get(type(node.value), t.UINT)

    def ident(self, node: ast.Ident) -> t.Type:
        known = self._variables.get(node.name)
        return known if known is not None else self._undeclared(node, node.name)

    def select(self, node: ast.Select) -> t.Type:
        name = qualified(node)
        if name is not None and not node.test and name in self._variables:
            self._visited += name.count(".")
            undefined = name in self._structs  # the name of an input's type is no value
            return self._fail(node, f"reference to undefined type: {name}") if undefined else self._variables[name]
        result = self._field(node, node.operand, node.field_name, optional=node.optional)
        return t.BOOL if node.test else self._substitution.resolve(result)

    def _field(self, node: ast.Node, operand: ast.Node, name: str, *, optional: bool) -> t.Type:
        type_ = self._substitution.resolve(self.visit(operand))
        inner = t.unwrap_optional(type_)
        target = inner if inner is not None else type_
        result = self._field_type(node, target, name)
        return t.optional_of(result) if optional or inner is not None else result

    def _field_type(self, node: ast.Node, target: t.Type, name: str) -> t.Type:
        if target.kind == "map":
            return target.params[1]
        if target.kind == "struct" and target.name in self._structs:
            known = self._structs[target.name].get(name)
            return known if known is not None else self._fail(node, f"undefined field '{name}'")
        if target.kind == "var":
            self._substitution.assignable((t.DYN,), (target,))
        elif not t.is_dynamic(target):
            if target.kind == "struct":
                return self._fail(node, f"undefined field '{name}'")
            self._fail(node, f"type '{target}' does not support field selection")
        return t.DYN

    # -- calls ----------------------------------------------------------------------------------------------

    def call(self, node: ast.Call) -> t.Type:
        if node.function == "_?._":
            field = node.args[1]
            assert isinstance(field, ast.Literal)
            field.type = t.STRING
            self._visited += 1
            return self._substitution.resolve(self._field(node, node.args[0], str(field.value), optional=True))
        self._formats += node.function == "format"
        result = self._called(node)
        self._formats -= node.function == "format"
        return result

    def _called(self, node: ast.Call) -> t.Type:
        for arg in node.args:
            self.visit(arg)
        if node.target is not None:
            prefix = qualified(node.target)
            namespaced = self._library.get(f"{prefix}.{node.function}") if prefix is not None else None
            if namespaced:
                node.function, node.target = f"{prefix}.{node.function}", None
                return self._resolve(node, namespaced, node.args)
            self.visit(node.target)
        overloads = self._library.get(node.function)
        if not overloads:
            return self._undeclared(node, node.function)
        return self._resolve(node, overloads, node.parts)

    def _resolve(self, node: ast.Call, overloads: Sequence[Overload], parts: list[ast.Node]) -> t.Type:
        have = tuple(part.type or t.ERROR for part in parts)
        if node.function in ("_&&_", "_||_"):
            return self._logical(parts)
        key = node.function, node.target is not None, have
        known = self._choices.get(key)
        if known is None:
            chosen, result = self._chosen(node, overloads, have)
            if result is None:
                return self._no_overload(node, have)
            known = chosen, result
            if not any(type_.is_open for type_ in (*have, result)):
                self._choices[key] = known
        node.chosen, type_ = known
        return type_

    def _chosen(
        self, node: ast.Call, overloads: Sequence[Overload], have: tuple[t.Type, ...]
    ) -> tuple[tuple[Overload, ...], t.Type | None]:
        """The overloads that fit arguments of these types, and the type of the result; None if none fits."""
        chosen: list[Overload] = []
        result: t.Type | None = None
        for overload in overloads:
            if overload.member != (node.target is not None):
                continue
            self._work.spend(OVERLOAD_COST)
            want, gives = self._instance(overload)
            if not self._substitution.assignable(have, want):
                continue
            chosen.append(overload)
            unknown = any(map(t.leaves_open, have, want))
            if unknown and node.function != "orValue":  # orValue() checks its result when it runs
                gives = t.with_dyn(gives)
            given = self._substitution.resolve(gives)
            if result is None:
                result = given
            elif not t.is_dynamic(result) and given != result:
                result = t.DYN
        return tuple(chosen), result

    def _logical(self, parts: list[ast.Node]) -> t.Type:
        good = [self._expect(part, part.type or t.ERROR, t.BOOL) for part in parts]
        return t.BOOL if all(good) else t.ERROR

    def _expect(self, node: ast.Node, have: t.Type, want: t.Type) -> bool:
        """Whether a node has the type; otherwise that is an issue."""
        fits = self._substitution.assignable((have,), (want,))
        if not fits:
            self._mismatch(node, want, have)
        return fits

    def _instance(self, overload: Overload) -> tuple[tuple[t.Type, ...], t.Type]:
        """The signature with type variables of its own."""
        fresh: dict[str, t.Type] = {}
        return tuple(self._renamed(a, fresh) for a in overload.args), self._renamed(overload.result, fresh)

    def _renamed(self, type_: t.Type, fresh: dict[str, t.Type]) -> t.Type:
        if type_.kind == "var":
            if type_.name not in fresh:
                fresh[type_.name] = self._substitution.fresh()
            return fresh[type_.name]
        if not type_.params:
            return type_
        return t.Type(type_.kind, type_.name, tuple(self._renamed(p, fresh) for p in type_.params))

    def _no_overload(self, node: ast.Call, have: tuple[t.Type, ...]) -> t.Type:
        shown = [str(self._substitution.resolve(h, free_is_dyn=True)) for h in have]
        signature = f"{shown[0]}.({', '.join(shown[1:])})" if node.target is not None else f"({', '.join(shown)})"
        return self._fail(node, f"found no matching overload for '{node.function}' applied to '{signature}'")

    # -- literals -------------------------------------------------------------------------------------------

    def list_literal(self, node: ast.ListLiteral) -> t.Type:
        items: t.Type | None = None
        for position, item in enumerate(node.items):
            type_ = self.visit(item)
            if position in node.optional:
                type_ = self._unwrapped(item, type_)
            items = self._join(item, items, type_)
        return t.list_of(items if items is not None else self._substitution.fresh())

    def map_literal(self, node: ast.MapLiteral) -> t.Type:
        keys: t.Type | None = None
        values: t.Type | None = None
        for key, value, optional in node.entries:
            keys = self._join(key, keys, self.visit(key))
            type_ = self.visit(value)
            values = self._join(value, values, self._unwrapped(value, type_) if optional else type_)
        if keys is None or values is None:
            return t.map_of(self._substitution.fresh(), self._substitution.fresh())
        return t.map_of(keys, values)

    def message_literal(self, node: ast.MessageLiteral) -> t.Type:
        known = self._variables.get(node.name)
        if known is None:
            return self._undeclared(node, node.name)
        if known.kind != "type":
            self._fail(node, f"'{known}' is not a type")
            result = t.ERROR
        elif node.name in MESSAGES or known.params[0].kind == "struct":
            result = known.params[0]
        else:
            result = self._fail(node, f"'{node.name}' is not a message type")
        known_fields = MESSAGES[node.name].fields if node.name in MESSAGES else self._structs.get(node.name, {})
        for field in node.fields:
            self._message_field(field, known_fields.get(field.name))
        return result

    def _message_field(self, field: ast.FieldInit, want: t.Type | None) -> None:
        have = self.visit(field.value)
        if want is None:
            self.issues.append(Issue(field.offset, f"undefined field '{field.name}'"))
            return
        if field.optional:
            have = self._unwrapped(field.value, have)
        if not self._substitution.assignable((have,), (want,)):
            problem = f"expected type of field '{field.name}' is '{want}' but provided type is '{have}'"
            self.issues.append(Issue(field.offset, problem))

    def _unwrapped(self, node: ast.Node, type_: t.Type) -> t.Type:
        inner = t.unwrap_optional(type_)
        if inner is None and not t.is_dynamic(type_):
            self._mismatch(node, t.optional_of(type_), type_)
        return inner if inner is not None else type_

    def _join(self, node: ast.Node, previous: t.Type | None, current: t.Type) -> t.Type:
        if previous is None or previous is current:
            return current
        self._substitution.spend(2 * current.parts)
        if self._substitution.assignable((previous,), (current,)):
            return _more_general(previous, current)
        return t.DYN if self._formats else self._mismatch(node, previous, current)

    def _mismatch(self, node: ast.Node, wanted: t.Type, found: t.Type) -> t.Type:
        return self._fail(node, f"expected type '{wanted}' but found '{found}'")

    # -- macros ---------------------------------------------------------------------------------------------

    def loop(self, node: ast.Loop) -> t.Type:
        range_type = self._substitution.resolve(self.visit(node.range))
        types = self._iterated(node, range_type)
        saved = self._declare(dict(zip(node.variables, types, strict=True)))
        if node.filter is not None:
            self._expect(node.filter, self.visit(node.filter), t.BOOL)
        body = self.visit(node.body)
        result = self._loop_result(node, range_type, body)
        self._variables = saved
        return self._substitution.resolve(result)

    def _iterated(self, node: ast.Loop, range_type: t.Type) -> tuple[t.Type, ...]:
        two = len(node.variables) > 1
        if range_type.kind == "list":
            item = range_type.params[0]
            return (t.INT, item) if two else (item,)
        if range_type.kind == "map":
            return range_type.params if two else (range_type.params[0],)
        if range_type.kind in ("dyn", "error", "var"):
            self._substitution.assignable((t.DYN,), (range_type,))
            return (t.DYN, t.DYN) if two else (t.DYN,)
        self._fail(
            node.range,
            f"expression of type '{range_type}' cannot be range of a comprehension (must be list, map, or dynamic)",
        )
        return (t.ERROR, t.ERROR) if two else (t.ERROR,)

    def _loop_result(self, node: ast.Loop, range_type: t.Type, body: t.Type) -> t.Type:
        kind = node.kind
        if kind in ("all", "exists", "exists_one"):
            self._expect(node.body, body, t.BOOL)
            return t.BOOL
        if kind == "filter":
            if not self._substitution.assignable((body,), (t.BOOL,)):
                self._fail(node, f"found no matching overload for '_?_:_' applied to '({body}, list, list)'")
            variable = node.variables[0]
            return t.list_of(self._variables[variable])
        if kind == "sortBy":
            return self._sort_result(node, range_type, body)
        if kind in ("map", "transformList"):
            return t.list_of(body)
        key = t.INT if range_type.kind == "list" else self._variables[node.variables[0]]
        if kind == "transformMap":
            return t.map_of(key, body)
        if not self._substitution.assignable(
            (body,), (t.map_of(self._substitution.fresh(), self._substitution.fresh()),)
        ):
            return self._mismatch(node.body, t.map_of(t.DYN, t.DYN), body)
        return body

    def _sort_result(self, node: ast.Loop, range_type: t.Type, body: t.Type) -> t.Type:
        comparable = ("int", "uint", "double", "bool", "string", "bytes", "duration", "timestamp", "dyn", "any", "var")
        if range_type.kind not in ("list", "dyn", "error", "var"):
            return self._fail(node, f"sortBy can only be applied to a list, not '{range_type}'")
        if body.kind not in (*comparable, "error"):
            return self._fail(node, f"sortBy key of type '{body}' cannot be ordered")
        return range_type

    def bind(self, node: ast.Bind) -> t.Type:
        saved = self._declare({node.name: self.visit(node.init)})
        result = self.visit(node.body)
        self._variables = saved
        return self._substitution.resolve(result)

    def optional_map(self, node: ast.OptionalMap) -> t.Type:
        target = self._substitution.resolve(self.visit(node.target))
        inner = t.unwrap_optional(target)
        if not self._substitution.assignable((target,), (t.optional_of(self._substitution.fresh()),)):
            name = "optFlatMap" if node.flat else "optMap"
            return self._fail(node, f"found no matching overload for '{name}' applied to '{target}.()'")
        saved = self._declare({node.name: inner if inner is not None else t.DYN})
        body = self._substitution.resolve(self.visit(node.body))
        self._variables = saved
        if not node.flat:
            return t.optional_of(body)
        if not self._substitution.assignable((body,), (t.optional_of(self._substitution.fresh()),)):
            return self._mismatch(node.body, t.optional_of(t.DYN), body)
        return self._substitution.resolve(body)

    def _declare(self, names: dict[str, t.Type]) -> dict[str, t.Type]:
        """Open a scope. Returns the variables of the outer scope, which the caller restores."""
        saved = self._variables
        self._variables = {**saved, **names}
        return saved


def qualified(node: ast.Node) -> str | None:
    """'a.b.c' for a chain of a few plain selections, else None: no declared name is longer."""
    names: list[str] = []
    while isinstance(node, ast.Select):
        if node.test or node.optional or len(names) > _MAX_NAMES:
            return None
        names.append(node.field_name)
        node = node.operand
    if not isinstance(node, ast.Ident):
        return None
    return ".".join([node.name, *reversed(names)])


# -- unification, by the rules of cel-go's checker ------------------------------------------------------------------


class Substitution:
    """The types that type variables stand for. A failed attempt changes nothing.

    All work with types takes steps. Every method raises TooMuchWork where an expression takes too many.
    """

    def __init__(self, work: Work) -> None:
        self._work = work
        self._known: dict[str, t.Type] = {}
        self._replaced: list[tuple[str, t.Type | None]] = []  # what the attempt under way has replaced
        self._fresh = 0

    def fresh(self) -> t.Type:
        self._fresh += 1
        return t.Type("var", f"_var{self._fresh}")

    def spend(self, steps: int) -> None:
        """Take steps for work that grows with the types."""
        self._work.spend(steps * TYPE_COST)

    def assignable(self, have: tuple[t.Type, ...], want: tuple[t.Type, ...]) -> bool:
        """Whether values of the types `have` fit the types `want`. On success the type variables are bound."""
        if len(have) != len(want):
            return False
        self._replaced.clear()
        if all(self._fits(h, w) for h, w in zip(have, want, strict=True)):
            return True
        for name, before in reversed(self._replaced):
            if before is None:
                del self._known[name]
            else:
                self._known[name] = before
        return False

    def _bind(self, variable: t.Type, type_: t.Type) -> None:
        self._replaced.append((variable.name, self._known.get(variable.name)))
        self._known[variable.name] = type_

    def resolve(self, type_: t.Type, *, free_is_dyn: bool = False) -> t.Type:
        """The type with its variables replaced; the same object where it has none."""
        if not type_.is_open:
            return type_
        self.spend(1)
        if type_.kind == "var":
            known = self._known.get(type_.name)
            if known is not None:
                return self.resolve(known, free_is_dyn=free_is_dyn)
            return t.DYN if free_is_dyn else type_
        params = tuple([self.resolve(p, free_is_dyn=free_is_dyn) for p in type_.params])
        if all(map(is_, params, type_.params)):
            return type_
        self.spend(_STEPS_OF_A_TYPE)
        return t.Type(type_.kind, type_.name, params)

    def _fits(self, have: t.Type, want: t.Type) -> bool:
        if have is want:
            return True
        self.spend(1)
        if want.kind == "var":
            valid, known = self._substitutes(have, want)
            if valid or known:
                return valid
        if have.kind == "var":
            return self._substitutes(want, have)[0]
        if t.is_dynamic(have) or t.is_dynamic(want):
            return True
        if "null" in (have.kind, want.kind):
            return have.kind in _NULLABLE and want.kind in _NULLABLE
        have, want = (type_.params[0] if type_.kind == "wrapper" else type_ for type_ in (have, want))
        if have.kind in _SIMPLE:
            return have == want
        if have.kind == "type":
            return want.kind == "type"
        return (have.kind, have.name, len(have.params)) == (want.kind, want.name, len(want.params)) and all(
            self._fits(h, w) for h, w in zip(have.params, want.params, strict=True)
        )

    def _substitutes(self, type_: t.Type, variable: t.Type) -> tuple[bool, bool]:
        """(the variable may stand for the type, the variable was bound before)."""
        if type_ == variable:
            return True, True
        known = self._known.get(variable.name)
        if known is None:
            if not self._occurs(variable, type_):
                self._bind(variable, type_)
                return True, False
            return False, False
        self.spend(known.parts)
        if type_ == known:
            return True, True
        if not self._fits(type_, known):
            return False, True
        general = _more_general(type_, known)
        if not self._occurs(variable, general):
            self._bind(variable, general)
        return True, True

    def _occurs(self, variable: t.Type, within: t.Type) -> bool:
        if not within.is_open:
            return False
        self.spend(1)
        if within.kind == "var":
            if within.name == variable.name:
                return True
            known = self._known.get(within.name)
            return known is not None and self._occurs(variable, known)
        return any(self._occurs(variable, p) for p in within.params)


def _more_general(left: t.Type, right: t.Type) -> t.Type:
    """The less specific of two types that agree."""
    return left if left is right or _less_specific(left, right) else right


def _less_specific(left: t.Type, right: t.Type) -> bool:
    if left.kind in ("dyn", "any", "var"):
        return True
    if right.kind in ("dyn", "any", "var") or left.kind != right.kind:
        return False
    if left.kind == "type":
        return True
    if left.name != right.name or len(left.params) != len(right.params):
        return False
    return all(_less_specific(a, b) for a, b in zip(left.params, right.params, strict=True))
