"""Small faults in a Python file, one at a time: flipped signs, dropped terms, changed scopes, other constants. Used by tools/mutate.py.

A fault is a replacement of one node of the syntax tree. Annotations, docstrings, messages and registries are left alone.
"""

from __future__ import annotations

import ast
import importlib
import re
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass

SWAPPED_OPERATORS: dict[type, tuple[type, ...]] = {
    ast.Add: (ast.Sub,),
    ast.Sub: (ast.Add,),
    ast.Mult: (ast.Div,),
    ast.Div: (ast.Mult,),
    ast.BitOr: (ast.BitAnd,),
    ast.BitAnd: (ast.BitOr,),
    ast.FloorDiv: (ast.Mult,),
    ast.Mod: (ast.FloorDiv,),
    ast.And: (ast.Or,),
    ast.Or: (ast.And,),
    ast.Lt: (ast.LtE, ast.Gt),
    ast.LtE: (ast.Lt, ast.GtE),
    ast.Gt: (ast.GtE, ast.Lt),
    ast.GtE: (ast.Gt, ast.LtE),
    ast.Eq: (ast.NotEq,),
    ast.NotEq: (ast.Eq,),
    ast.Is: (ast.IsNot,),
    ast.IsNot: (ast.Is,),
}
SWAPPED_NAMES = {  # as an attribute: x.weighted -> x.uniform
    "weighted": "uniform",
    "uniform": "weighted",
    "size": "population",
    "population": "size",
    "beta1": "beta2",
    "beta2": "beta1",
    "zeros_like": "ones_like",
    "new_zeros": "new_ones",
    "any": "all",
    "all": "any",
    "add_": "sub_",
    "sub": "add",
    "initial_v": "tau",
    "tau": "initial_v",
    "lambda_min": "lambda_max",
    "lambda_max": "lambda_min",
    "rho_min": "rho_max",
    "rho_max": "rho_min",
    "alpha": "beta",
    "beta": "alpha",
    "kappa": "alpha",
    "steps": "effective_steps",
    "effective_steps": "steps",
}
FUNCTIONS_TO_DROP = {"exp", "sign", "arccos", "abs", "sqrt", "square", "clamp", "round", "clone", "detach", "max", "min", "finite"}
KEYWORDS_TO_SWAP = {"min": "max", "max": "min"}


@dataclass(frozen=True)
class Mutant:
    """One fault."""

    file: str  # below the package, "algorithms/feddyn.py"
    line: int
    function: str  # "FedDyn.update", or the module
    what: str  # "a + b -> a - b"
    text: str  # the whole file with the fault

    @property
    def name(self) -> str:
        """Stays when lines move: what the list of equivalent mutants names."""
        return f"{self.file}::{self.function}: {self.what}"


def mutants(file: str, source: str, module: str, functions: tuple[str, ...] | None) -> list[Mutant]:
    """All faults of one file, in the order of its lines; `functions`: beginnings of the qualified names to look at, None for all."""
    tree = ast.parse(source)
    context = Context(module, source)
    found: list[Mutant] = []
    names: Counter[str] = Counter()
    texts = {ast.unparse(tree)}
    for place in places(tree, (), context):
        where = ".".join(place.names) or "module"
        if functions is not None and not where.startswith(functions):
            continue
        for new in alternatives(place, context):
            old_text, new_text = shown(place.node), shown(new)
            place.put(new)
            try:
                text = ast.unparse(ast.fix_missing_locations(tree))
                ast.parse(text)
            finally:
                place.put(place.node)
            if text in texts:  # two ways to the same fault
                continue
            texts.add(text)
            what = f"{old_text} -> {new_text}"
            names[f"{where}{what}"] += 1
            again = names[f"{where}{what}"]
            found.append(Mutant(file, place.line, where, what if again == 1 else f"{what} (#{again})", text))
    return sorted(found, key=lambda mutant: mutant.line)


class Context:
    """What the annotations of the file's functions mean."""

    def __init__(self, module: str, source: str) -> None:
        self.namespace = vars(importlib.import_module(module))
        self.shapes: dict[str, dict[str, str]] = {}  # class -> field -> "[d]"
        current = ""
        for line in source.splitlines():
            if named := re.match(r"class (\w+)", line):
                current = named[1]
            elif field := re.match(r"    (\w+): .*?# (\[[^\]]*\])", line):
                self.shapes.setdefault(current, {})[field[1]] = field[2]

    def fields(self, annotation: str) -> tuple[str, ...]:
        """The fields of a NamedTuple that is called so in the file."""
        return tuple(getattr(self.namespace.get(annotation), "_fields", ()))


@dataclass
class Place:
    """A node, where it hangs, and the parameters of the function around it."""

    node: ast.AST
    put: Callable[[ast.AST | None], None]
    names: tuple[str, ...]  # classes and functions around it
    parameters: dict[str, str]  # name -> annotation
    line: int
    parent: ast.AST


def places(node: ast.AST, names: tuple[str, ...], context: Context, parameters: dict[str, str] | None = None) -> Iterator[Place]:
    """Every node that may be replaced, below `node`."""
    parameters = parameters or {}
    if isinstance(node, ast.ClassDef | ast.FunctionDef):
        names = (*names, node.name)
    if isinstance(node, ast.FunctionDef):
        parameters = parameters | {each.arg: ast.unparse(each.annotation) if each.annotation else "" for each in node.args.args}
    for field, value in ast.iter_fields(node):
        if field in ("annotation", "returns", "decorator_list", "bases", "ctx", "op", "ops", "args") and not isinstance(node, ast.Call):
            continue
        for i, child in enumerate(value if isinstance(value, list) else [value]):
            if not isinstance(child, ast.AST) or skipped(child):
                continue
            put = _putter(node, field, i if isinstance(value, list) else None)
            inner = (*names, child.name) if isinstance(child, ast.FunctionDef) else names
            yield Place(child, put, inner, parameters, getattr(child, "lineno", getattr(node, "lineno", 0)), node)
            yield from places(child, names, context, parameters)


def _putter(parent: ast.AST, field: str, index: int | None) -> Callable[[ast.AST | None], None]:
    def put(new: ast.AST | None) -> None:
        new = ast.Pass() if new is None else new
        if index is None:
            setattr(parent, field, new)
        else:
            getattr(parent, field)[index] = new

    return put


def skipped(node: ast.AST) -> bool:
    """No fault is put here: messages, docstrings, imports, types."""
    if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant):
        return True
    if isinstance(node, ast.Assign) and isinstance(node.value, ast.Dict):
        return True
    if isinstance(node, ast.ClassDef) and any(isinstance(base, ast.Name) and base.id == "Protocol" for base in node.bases):
        return True
    return isinstance(node, ast.Raise | ast.Assert | ast.JoinedStr | ast.Import | ast.ImportFrom)


def shown(node: ast.AST) -> str:
    """A node in a report."""
    if isinstance(node, ast.Pass):
        return "nothing"
    if isinstance(node, ast.FunctionDef):
        return f"def {node.name}"
    if isinstance(node, ast.If):
        return f"if {ast.unparse(node.test)}"
    return " ".join(ast.unparse(node).split())


def alternatives(place: Place, context: Context) -> Iterator[ast.AST]:
    """What may stand in a node's place."""
    node = place.node
    if isinstance(node, ast.FunctionDef):
        if isinstance(place.parent, ast.ClassDef) and place.parent.bases:
            yield ast.Pass()  # the rule that it overrides acts instead
    elif isinstance(node, ast.BinOp):
        yield from binary(node)
    elif isinstance(node, ast.UnaryOp) and not isinstance(node.operand, ast.Constant):
        yield node.operand
    elif isinstance(node, ast.Constant):
        yield from constants(node.value)
    elif isinstance(node, ast.Compare):
        for other in SWAPPED_OPERATORS.get(type(node.ops[0]), ()):
            yield ast.Compare(node.left, [other(), *node.ops[1:]], node.comparators)
    elif isinstance(node, ast.BoolOp):
        yield ast.BoolOp(SWAPPED_OPERATORS[type(node.op)][0](), node.values)
        yield from node.values
    elif isinstance(node, ast.IfExp):
        yield from (node.body, node.orelse)
    elif isinstance(node, ast.If):
        for value in (True, False):
            yield ast.If(ast.Constant(value), node.body, node.orelse)
    elif isinstance(node, ast.AugAssign):
        yield ast.Pass()
        for other in SWAPPED_OPERATORS.get(type(node.op), ()):
            yield ast.AugAssign(node.target, other(), node.value)
    elif isinstance(node, ast.Attribute | ast.Name):
        yield from scopes(node, place, context)
    elif isinstance(node, ast.Call):
        yield from calls(node)


def binary(node: ast.BinOp) -> Iterator[ast.AST]:
    """The other sign, and either term dropped."""
    for other in SWAPPED_OPERATORS.get(type(node.op), ()):
        yield ast.BinOp(node.left, other(), node.right)
    if not isinstance(node.op, ast.MatMult):
        yield node.left
    if isinstance(node.op, ast.Add | ast.Mult | ast.BitOr | ast.BitAnd | ast.Sub):
        yield node.right


def constants(value: object) -> Iterator[ast.AST]:
    """Another number."""
    if isinstance(value, bool):
        yield ast.Constant(not value)
    elif isinstance(value, int):
        yield ast.Constant(value + 1)
        if value == 1:
            yield ast.Constant(0)
    elif isinstance(value, float):
        yield ast.Constant(value * 1.5 if value else 0.5)


def scopes(node: ast.Attribute | ast.Name, place: Place, context: Context) -> Iterator[ast.AST]:
    """Another model, another client's or server's state, another field of the same state."""
    parameters = place.parameters
    if isinstance(place.parent, ast.keyword) and place.parent.arg == "default_factory":
        return
    if isinstance(place.parent, ast.Attribute) and place.parent.attr == "dtype":  # all of a model's state has one
        return
    if not isinstance(node.ctx, ast.Load):
        return
    if isinstance(node, ast.Name):
        if node.id == "w" and "w" in parameters and "sent" in parameters:
            yield ast.parse("sent.w", mode="eval").body
        return
    inner = node.value
    if node.attr in SWAPPED_NAMES:
        other = SWAPPED_NAMES[node.attr]
        own = getattr(context.namespace.get(place.names[0]), "__dataclass_fields__", {}) if place.names else {}
        if other in own or not (isinstance(inner, ast.Name) and inner.id == "self"):
            yield ast.Attribute(inner, other, node.ctx)
    if isinstance(inner, ast.Attribute) and inner.attr in ("weighted", "uniform"):
        fields = context.fields("Upload")
        if len(fields) > 1 and node.attr in fields:
            yield ast.Attribute(inner, fields[(fields.index(node.attr) + 1) % len(fields)], node.ctx)
    if not isinstance(inner, ast.Name) or inner.id not in parameters:
        return
    if inner.id == "sent" and node.attr == "w" and "w" in parameters:
        yield ast.Name("w", ast.Load())
    annotation = parameters[inner.id]
    fields, shapes = context.fields(annotation), context.shapes.get(annotation, {})
    if node.attr in fields:
        start = fields.index(node.attr)
        others = [*fields[start + 1 :], *fields[:start]]
        alike = [other for other in others if node.attr in shapes and shapes.get(other) == shapes[node.attr]]
        yield from (ast.Attribute(inner, other, node.ctx) for other in alike[:1])
    for other, its in parameters.items():
        if other != inner.id and node.attr in context.fields(its) and node.attr in fields:
            yield ast.Attribute(ast.Name(other, ast.Load()), node.attr, node.ctx)


def calls(node: ast.Call) -> Iterator[ast.AST]:
    """A dropped term, function or keyword; arguments that change places."""
    called, arguments, keywords = node.func, node.args, node.keywords
    name = called.attr if isinstance(called, ast.Attribute) else called.id if isinstance(called, ast.Name) else ""
    is_torch = isinstance(called, ast.Attribute) and isinstance(called.value, ast.Name) and called.value.id in ("torch", "math", "np")
    if name in ("addcmul", "add", "sub", "add_") and len(arguments) + (not is_torch) >= 2:
        yield arguments[0] if is_torch or not isinstance(called, ast.Attribute) else called.value
    if name == "addcmul":
        yield ast.Call(called, [arguments[0], ast.UnaryOp(ast.USub(), arguments[1]), arguments[2]], keywords)
    if name == "lerp":
        yield from arguments[:2]
    if name == "where" and len(arguments) == 3:
        yield ast.Call(called, [arguments[0], arguments[2], arguments[1]], keywords)
        yield from arguments[1:]
    if name == "norm":
        yield ast.Call(called, [ast.Constant(1)], [])
    if name in FUNCTIONS_TO_DROP and not (isinstance(called, ast.Attribute) and name in ("max", "min")):
        if is_torch and arguments:
            yield arguments[0]
        elif isinstance(called, ast.Attribute):
            yield called.value
    for i, keyword in enumerate(keywords):
        rest = keywords[:i] + keywords[i + 1 :]
        if name == "_replace" and len(keywords) == 1 and isinstance(called, ast.Attribute):
            yield called.value
        elif keyword.arg not in (None, "strict", "remedy", "dtype", "default_factory", "code"):
            yield ast.Call(called, arguments, rest)
        if keyword.arg == "alpha" and not isinstance(keyword.value, ast.Constant):
            yield ast.Call(called, arguments, [*rest, ast.keyword("alpha", ast.UnaryOp(ast.USub(), keyword.value))])
        if keyword.arg in KEYWORDS_TO_SWAP:
            yield ast.Call(called, arguments, [*rest, ast.keyword(KEYWORDS_TO_SWAP[keyword.arg], keyword.value)])
    if name[:1].isupper() or name in ("step", "shortened", "ahead", "proximal", "clamp", "draw"):
        for i in range(len(arguments) - 1):
            swapped = [*arguments[:i], arguments[i + 1], arguments[i], *arguments[i + 2 :]]
            yield ast.Call(called, swapped, keywords)
