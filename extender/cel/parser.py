"""Source text to tokens to syntax tree: cel-spec langdef with Kubernetes' optional syntax, as cel-go v0.26 accepts it.

A macro is expanded as soon as its call is read.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Sequence
from math import isinf
from typing import NamedTuple

from extender.cel.ast import (
    Bind,
    Call,
    FieldInit,
    Ident,
    ListLiteral,
    Literal,
    Loop,
    MapLiteral,
    MessageLiteral,
    Node,
    OptionalMap,
    Select,
    children,
)
from extender.cel.cost import CHARACTER, TOKEN, Work
from extender.cel.errors import CompileError, Issue
from extender.cel.values import UInt

_PATTERN = re.compile(
    r"(?P<space>[ \t\r\n\f]+|//[^\n]*)"
    r"|(?P<float>\d+\.\d+(?:[eE][+-]?\d+)?|\d+[eE][+-]?\d+|\.\d+(?:[eE][+-]?\d+)?)"
    r"|(?P<uint>0x[0-9a-fA-F]+[uU]|\d+[uU])"
    r"|(?P<int>0x[0-9a-fA-F]+|\d+)"
    r"|(?P<string>(?:[bB][rR]?|[rR])?(?:\"\"\"|'''|\"|'))"
    r"|(?P<ident>[A-Za-z_][A-Za-z0-9_]*)"
    r"|(?P<op>==|!=|<=|>=|&&|\|\||[-+*/%!<>?:.,()\[\]{}])",
    re.ASCII,
)
_ESCAPE = re.compile(
    r"\\(?:([abfnrtv\\'\"`?])|[xX]([0-9a-fA-F]{2})|u([0-9a-fA-F]{4})|U([0-9a-fA-F]{8})|([0-3][0-7]{2}))"
)
_SURROGATES = (0xD800, 0xDFFF)  # no characters of their own (Unicode 3.8)
_MAX_DIGITS = 64  # more than any 64-bit number has, leading zeros included
_SIMPLE = {"a": "\a", "b": "\b", "f": "\f", "n": "\n", "r": "\r", "t": "\t", "v": "\v"}


class Token(NamedTuple):
    """kind is int, uint, float, string, bytes, ident, op or end."""

    kind: str
    text: str
    offset: int
    value: object = None


def tokens(source: str) -> list[Token]:
    """All tokens, closed by one of kind 'end'. Raises CompileError at the first character that fits nowhere."""
    found: list[Token] = []
    at = 0
    while at < len(source):
        match = _PATTERN.match(source, at)
        if match is None:
            raise _syntax(source, at, f"token recognition error at: {source[at]!r}")
        kind = match.lastgroup or ""
        if kind == "string":
            token, at = _string(source, match)
            found.append(token)
            continue
        if kind != "space":
            found.append(_token(source, kind, match))
        at = match.end()
    found.append(Token("end", "<EOF>", len(source)))
    return found


def _syntax(source: str, offset: int, problem: str) -> CompileError:
    return CompileError(source, [Issue(offset, f"Syntax error: {problem}")])


def _token(source: str, kind: str, match: re.Match[str]) -> Token:
    text, offset = match.group(), match.start()
    if kind in ("int", "uint") and len(text) > _MAX_DIGITS:
        raise CompileError(source, [Issue(offset, f"invalid {kind} literal")])
    value: object = None
    if kind == "int":
        value = int(text, 16 if text.startswith("0x") else 10)
    elif kind == "uint":
        digits = text[:-1]
        value = UInt(int(digits, 16 if digits.startswith("0x") else 10))
        if value >= 2**64:
            raise CompileError(source, [Issue(offset, "invalid uint literal")])
    elif kind == "float":
        value = float(text)
        if isinf(value):
            raise CompileError(source, [Issue(offset, "invalid double literal")])
    return Token(kind, text, offset, value)


def _string(source: str, match: re.Match[str]) -> tuple[Token, int]:
    opening = match.group()
    quote = opening.lstrip("bBrR")
    prefix = opening[: len(opening) - len(quote)].lower()
    end = _closing(source, match.end(), quote, raw="r" in prefix)
    if end < 0:
        raise _syntax(source, match.start(), f"token recognition error at: {source[match.start() :][:20]!r}")
    body = source[match.end() : end]
    stop = end + len(quote)
    text = body if "r" in prefix else _unescape(source, body, match.start(), binary="b" in prefix)
    if "b" in prefix:
        data = text.encode() if "r" in prefix else text.encode("latin-1")
        return Token("bytes", source[match.start() : stop], match.start(), data), stop
    return Token("string", source[match.start() : stop], match.start(), text), stop


def _closing(source: str, start: int, quote: str, *, raw: bool) -> int:
    """The offset of the closing quote, or -1. A literal in single quotes may not contain a line break."""
    at = start
    while at < len(source):
        if source.startswith(quote, at):
            return at
        if len(quote) == 1 and source[at] in "\r\n":
            return -1
        at += 2 if source[at] == "\\" and not raw else 1
    return -1


def _unescape(source: str, body: str, offset: int, *, binary: bool) -> str:
    """The text without escapes. For bytes each character of the result is one byte."""
    pieces: list[str] = []
    at = 0
    while at < len(body):
        if body[at] != "\\":
            pieces.append(body[at].encode().decode("latin-1") if binary else body[at])
            at += 1
            continue
        match = _ESCAPE.match(body, at)
        if match is None:
            raise _syntax(source, offset, f"token recognition error at: {body[at : at + 2]!r}")
        pieces.append(_escaped(source, match, offset, binary=binary))
        at = match.end()
    return "".join(pieces)


def _escaped(source: str, match: re.Match[str], offset: int, *, binary: bool) -> str:
    simple, hexadecimal, short, long, octal = match.groups()
    if simple is not None:
        return _SIMPLE.get(simple, simple)
    if binary and (short or long):
        raise _syntax(source, offset, "unicode escape in a bytes literal")
    code = int(octal, 8) if octal else int(hexadecimal or short or long, 16)
    if not binary and (_SURROGATES[0] <= code <= _SURROGATES[1] or code > sys.maxunicode):
        raise _syntax(source, offset, "invalid unicode code point")
    return chr(code)


# -- macros: calls that are loops or bindings ------------------------------------------------------------------------

# Name and number of arguments of a call that is a loop, to the kind of the loop and the number of its variables.
_LOOPS = {
    **{(name, 2): (name, 1) for name in ("all", "exists", "exists_one", "filter", "map", "sortBy")},
    ("map", 3): ("map", 1),
    **{(name, 3): (name, 2) for name in ("all", "exists", "exists_one")},
    ("existsOne", 3): ("exists_one", 2),
    **{(name, n): (name, 2) for name in ("transformList", "transformMap", "transformMapEntry") for n in (3, 4)},
}


def expand(source: str, call: Call) -> Node:
    """The node of the macro that this call is, or the call itself."""
    target, name, args = call.target, call.function, call.args
    if target is None:
        return _has(source, call) if (name, len(args)) == ("has", 1) else call
    if isinstance(target, Ident) and target.name == "cel" and (name, len(args)) == ("bind", 3):
        variable = _variable(source, args[0], "cel.bind() variable names must be simple identifiers")
        return Bind(call.offset, variable, args[1], args[2])
    if name in ("optMap", "optFlatMap") and len(args) == 2:  # noqa: PLR2004 - name, body
        variable = _variable(source, args[0], f"{name}() variable name must be a simple identifier")
        return OptionalMap(call.offset, target, variable, args[1], name == "optFlatMap")
    loop = _LOOPS.get((name, len(args)))
    return call if loop is None else _loop(source, call, target, *loop)


def _fail(source: str, node: Node, problem: str) -> CompileError:
    return CompileError(source, [Issue(node.offset, problem)])


def _has(source: str, call: Call) -> Node:
    field = call.args[0]
    if not isinstance(field, Select) or field.test:
        raise _fail(source, field, "invalid argument to has() macro")
    field.test = True
    return field


def _variable(source: str, node: Node, problem: str) -> str:
    if not isinstance(node, Ident):
        raise _fail(source, node, problem)
    if node.name == "__result__":
        raise _fail(source, node, "iteration variable overwrites accumulator variable")
    return node.name


def _loop(source: str, call: Call, target: Node, kind: str, variables: int) -> Node:
    names = tuple(_variable(source, arg, "argument must be a simple name") for arg in call.args[:variables])
    if len(set(names)) < len(names):
        raise _fail(source, call.args[1], f"duplicate variable name: {names[1]}")
    *condition, body = call.args[variables:]
    return Loop(call.offset, kind, target, names, body, condition[0] if condition else None)


# -- tokens to syntax tree: precedence climbing, bounded nesting -----------------------------------------------------

MAX_LENGTH = 10 * 1024  # resource.k8s.io CELSelectorExpressionMaxLength
MAX_DEPTH = 250  # cel-go's default recursion limit of the parser

RESERVED = frozenset({
    "as", "break", "const", "continue", "else", "for", "function", "if", "import", "let", "loop", "package",
    "namespace", "return", "var", "void", "while",
})  # fmt: skip
_WORDS = {"and": "&&", "or": "||"}
_KEYWORDS = {"true": True, "false": False, "null": None}
_LEVELS = {"||": 1, "&&": 2, "in": 3, "+": 4, "-": 4, "*": 5, "/": 5, "%": 5}
_LEVELS |= dict.fromkeys(("==", "!=", "<", "<=", ">", ">="), 3)
_LOGICAL_LEVELS = 2  # the levels of || and &&
MAX_TREE_DEPTH = 320  # a chain such as 1+1+1 nests without parentheses; two Python frames a level must fit


def parse(source: str, work: Work) -> Node:
    """The tree of an expression, to be used within `Compiling`. Raises CompileError with the position."""
    if len(source.encode()) > MAX_LENGTH:
        raise CompileError(source, [], f"too long: {len(source.encode())} bytes, the limit is {MAX_LENGTH}")
    node = _Parser(source, work).whole()
    _check_depth(source, node)
    return node


def _check_depth(source: str, root: Node) -> None:
    level = [root]
    for _ in range(MAX_TREE_DEPTH):
        level = [child for node in level for child in children(node)]
        if not level:
            return
    raise CompileError(source, [Issue(level[0].offset, f"nested more than {MAX_TREE_DEPTH} levels deep")])


class _Parser:
    def __init__(self, source: str, work: Work) -> None:
        self.source = source
        work.spend(CHARACTER * len(source))
        self.tokens = tokens(source)
        work.spend(TOKEN * len(self.tokens))
        self.at = 0
        self.depth = 0

    # -- plumbing -------------------------------------------------------------------------------------------

    @property
    def token(self) -> Token:
        return self.tokens[self.at]

    def fail(self, offset: int, problem: str) -> CompileError:
        return CompileError(self.source, [Issue(offset, problem)])

    def unexpected(self, wanted: str) -> CompileError:
        token = self.token
        return self.fail(token.offset, f"Syntax error: mismatched input '{token.text}' expecting {wanted}{self.hint()}")

    def hint(self) -> str:
        """The CEL operator for a word of another language, such as `and`; '' for other tokens."""
        operator = _WORDS.get(self.token.text)
        return f": write {operator}, not {self.token.text}" if operator else ""

    def sees(self, text: str) -> bool:
        token = self.token
        return token.text == text and token.kind in ("op", "ident")

    def take(self, text: str) -> bool:
        if self.sees(text):
            self.at += 1
            return True
        return False

    def expect(self, text: str) -> Token:
        if not self.sees(text):
            raise self.unexpected(f"'{text}'")
        self.at += 1
        return self.tokens[self.at - 1]

    # -- grammar: precedence climbing, two frames a level so that 250 levels fit Python's stack ----------------

    def whole(self) -> Node:
        node = self.expression()
        if self.token.kind != "end":
            problem = f"Syntax error: extraneous input '{self.token.text}' expecting <EOF>{self.hint()}"
            raise self.fail(self.token.offset, problem)
        return node

    def expression(self) -> Node:
        self.depth += 1
        if self.depth > MAX_DEPTH:
            raise self.fail(self.token.offset, f"expression recursion limit exceeded: {MAX_DEPTH}")
        node = self.binary(0)
        if self.sees("?"):
            offset = self.expect("?").offset
            # The middle is a disjunction in the grammar: 'a ? b ? c : d : e' needs parentheses.
            yes = self.binary(0)
            self.expect(":")
            node = Call(offset, "_?_:_", [node, yes, self.expression()])
        self.depth -= 1
        return node

    def binary(self, least: int) -> Node:
        node = self.operand()
        while (level := self.level()) > least:
            token = self.token
            if level <= _LOGICAL_LEVELS:
                node = self.chain(node, token.text, level)
                continue
            self.at += 1
            function = "@in" if token.text == "in" else f"_{token.text}_"
            node = Call(token.offset, function, [node, self.binary(level)])
        return node

    def level(self) -> int:
        token = self.token
        return _LEVELS.get(token.text, 0) if token.kind in ("op", "ident") else 0

    def chain(self, first: Node, operator: str, level: int) -> Node:
        """a && b && c as a balanced tree: a long chain does not nest deeply."""
        terms, offsets = [first], []
        while self.sees(operator):
            offsets.append(self.expect(operator).offset)
            terms.append(self.binary(level))
        return _balanced(f"_{operator}_", terms, offsets)

    def operand(self) -> Node:
        token = self.token
        node = self.prefixed(token) if token.kind == "op" and token.text in "!-" else self.primary()
        return self.member(node)

    def prefixed(self, token: Token) -> Node:
        """!!x is x and --x is x: the grammar counts the signs."""
        count = 0
        while self.take(token.text):
            count += 1
        number = self.token
        if token.text == "-" and number.kind in ("int", "float") and count % 2:
            self.at += 1
            assert isinstance(number.value, int | float)
            return Literal(token.offset, self.checked_int(-number.value, token))
        operand = self.operand()
        if count % 2 == 0:
            return operand
        return Call(token.offset, "!_" if token.text == "!" else "-_", [operand])

    def checked_int(self, value: float, token: Token) -> object:
        if isinstance(value, int) and not -(2**63) <= value < 2**63:
            raise self.fail(token.offset, "invalid int literal")
        return value

    def member(self, node: Node) -> Node:
        depth = 0
        while True:
            if self.sees("."):
                node = self.selection(node)
            elif self.sees("["):
                node = self.indexing(node)
            else:
                return node
            depth += 1
            if depth > MAX_DEPTH:
                raise self.fail(self.token.offset, f"expression recursion limit exceeded: {MAX_DEPTH}")

    def selection(self, operand: Node) -> Node:
        dot = self.expect(".")
        optional = self.take("?")
        name = self.token
        if name.kind != "ident":
            raise self.unexpected("IDENTIFIER")
        self.at += 1
        if optional:
            return Call(dot.offset, "_?._", [operand, Literal(name.offset, name.text)])
        if self.sees("("):
            return self.call(name.text, operand)
        if name.text in _KEYWORDS or name.text == "in":
            raise self.fail(name.offset, f"Syntax error: mismatched input '{name.text}' expecting IDENTIFIER")
        return Select(dot.offset, operand, name.text)

    def indexing(self, operand: Node) -> Node:
        bracket = self.expect("[")
        function = "_[?_]" if self.take("?") else "_[_]"
        index = self.expression()
        self.expect("]")
        return Call(bracket.offset, function, [operand, index])

    def call(self, name: str, target: Node | None) -> Node:
        offset = self.expect("(").offset
        args: list[Node] = []
        while not self.sees(")"):
            args.append(self.expression())
            if not self.take(","):
                break
            if self.sees(")"):
                raise self.unexpected("an argument")
        self.expect(")")
        return expand(self.source, Call(offset, name, args, target))

    def primary(self) -> Node:
        token = self.token
        if token.kind in ("int", "uint", "float", "string", "bytes"):
            self.at += 1
            value = token.value
            if token.kind == "int":
                assert isinstance(value, int)
                value = self.checked_int(value, token)
            return Literal(token.offset, value)
        if token.kind == "ident":
            return self.identifier(token)
        if self.take("("):
            node = self.expression()
            self.expect(")")
            node.parenthesized = True
            return node
        if self.sees("["):
            return self.list_literal()
        if self.sees("{"):
            return self.map_literal()
        if self.sees("."):
            self.at += 1
            if self.token.kind != "ident":
                raise self.unexpected("IDENTIFIER")
            return self.identifier(self.token)
        raise self.unexpected("an expression")

    def identifier(self, token: Token) -> Node:
        self.at += 1
        if token.text in _KEYWORDS:
            return Literal(token.offset, _KEYWORDS[token.text])
        if token.text == "in":
            raise self.fail(token.offset, "Syntax error: mismatched input 'in' expecting an expression")
        if token.text in RESERVED:
            raise self.fail(token.offset, f"reserved identifier: {token.text}")
        if self.sees("("):
            return self.call(token.text, None)
        name = self.message_name(token.text)
        return Ident(token.offset, token.text) if name is None else self.message_literal(name)

    def message_name(self, first: str) -> str | None:
        """'a.b.C' where the next tokens are .b.C{ (the parser then stands at the brace), else None."""
        at, names = self.at, [first]
        while self.tokens[at].text == "." and self.tokens[at + 1].kind == "ident":
            names.append(self.tokens[at + 1].text)
            at += 2
        if self.tokens[at].text != "{" or self.tokens[at].kind != "op":
            return None
        self.at = at
        return ".".join(names)

    def message_literal(self, name: str) -> Node:
        offset = self.expect("{").offset
        fields: list[FieldInit] = []
        while not self.sees("}"):
            optional = self.take("?")
            field = self.token
            if field.kind != "ident" or field.text in _KEYWORDS or field.text == "in":
                raise self.unexpected("IDENTIFIER")
            self.at += 1
            colon = self.expect(":").offset
            fields.append(FieldInit(field.text, self.expression(), optional, colon))
            if not self.take(","):
                break
        self.expect("}")
        return MessageLiteral(offset, name, fields)

    def list_literal(self) -> Node:
        offset = self.expect("[").offset
        items: list[Node] = []
        optional: set[int] = set()
        while not (self.sees("]") or self._lone_comma("]", items)):
            if self.take("?"):
                optional.add(len(items))
            items.append(self.expression())
            if not self.take(","):
                break
        self.expect("]")
        return ListLiteral(offset, items, frozenset(optional))

    def _lone_comma(self, end: str, items: Sequence[object]) -> bool:
        """Whether the literal is `[,]` or `{,}`, which the grammar allows. Moves to the end."""
        return not items and self.sees(",") and self.tokens[self.at + 1].text == end and self.take(",")

    def map_literal(self) -> Node:
        offset = self.expect("{").offset
        entries: list[tuple[Node, Node, bool]] = []
        while not (self.sees("}") or self._lone_comma("}", entries)):
            optional = self.take("?")
            key = self.expression()
            self.expect(":")
            entries.append((key, self.expression(), optional))
            if not self.take(","):
                break
        self.expect("}")
        return MapLiteral(offset, entries)


def _balanced(function: str, terms: list[Node], offsets: list[int]) -> Node:
    if len(terms) == 1:
        return terms[0]
    middle = (len(terms) - 1) // 2
    left = _balanced(function, terms[: middle + 1], offsets[:middle])
    right = _balanced(function, terms[middle + 1 :], offsets[middle + 1 :])
    return Call(offsets[middle], function, [left, right])
