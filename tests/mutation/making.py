"""Makes mutants with the operators of Cosmic Ray."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from dataclasses import dataclass
from hashlib import sha256

from mutation.parts import ROOT

# Operators that name no mistake people make. Identity for equality is one, but of the small numbers and interned names
# that are compared here it is the same.
LEFT_ALONE = ("no-op", "variable", "RemoveDecorator", "Exception", "_Is", "_IsNot")
# Of a number these are what others make of it: ~n is -(n + 1), and +n is n.
_MADE_BEFORE = re.compile(r"(?<![\w)\]])[~+] ?\d")
_OF_BITS: dict[type[ast.operator], ast.operator] = {ast.Add: ast.BitOr(), ast.Mult: ast.BitAnd()}


@dataclass(frozen=True, slots=True)
class Place:
    """Where an operator can change something: the operator's name, and which of its places in the module."""

    part: str
    module: str
    operator: str
    number: int


@dataclass(frozen=True, slots=True)
class Mutant:
    """One changed place. `shown`: the line before and after."""

    part: str
    module: str
    operator: str
    line: int
    shown: tuple[str, str]
    code: str
    of: str  # what it is a mutant of: `digest` of the module


def places(part: str, module: str) -> Iterator[Place]:
    """Every place of a module, for every operator that names a mistake people make."""
    from cosmic_ray.ast import ast_nodes, get_ast
    from cosmic_ray.plugins import get_operator, operator_names

    nodes = list(ast_nodes(get_ast((ROOT / module).read_text())))
    for name in sorted(operator_names()):
        made = get_operator(name)
        if any(name.endswith(word) if word[0] == "_" else word in name for word in LEFT_ALONE) or made.arguments():
            continue
        count = sum(1 for node in nodes for _ in made().mutation_positions(node))
        yield from (Place(part, module, name, number) for number in range(count))


def mutant(place: Place, seen: set[str]) -> Mutant | None:
    """The mutant of a place; None if it is the same program, or one that was there already."""
    from cosmic_ray.mutating import mutate_code
    from cosmic_ray.plugins import get_operator

    source = (ROOT / place.module).read_text()
    code = mutate_code(source, get_operator(place.operator)(), place.number)
    runs = place.module + (program(code) if code is not None else "")
    if code is None or runs == place.module + program(source) or runs in seen:
        return None
    seen.add(runs)
    line, shown = _difference(source, code)
    if place.operator.endswith(("_USub_Invert", "_USub_UAdd")) and _MADE_BEFORE.search(shown[1]):
        return None
    return Mutant(place.part, place.module, place.operator.split("/")[-1], line, shown, code, digest(place.module))


def digest(module: str) -> str:
    """Another one for every other text of a module: a plan says nothing about a module that has changed since."""
    return sha256((ROOT / module).read_bytes()).hexdigest()[:16]


def program(code: str) -> str:
    """What runs of it: without annotations, docstrings and type-checking imports."""
    try:
        tree = ast.parse(code)
    except SyntaxError:
        return ""
    tree = _Bits().visit(tree)
    for node in ast.walk(tree):
        if isinstance(node, ast.FunctionDef):
            node.returns = None
            taken = node.args  # `*` or `/` between arguments: the callers name the same ones
            taken.args = [*taken.posonlyargs, *taken.args, *taken.kwonlyargs]
            taken.defaults += [default for default in taken.kw_defaults if default is not None]
            taken.posonlyargs, taken.kwonlyargs, taken.kw_defaults = [], [], []
            for argument in (*taken.args, taken.vararg, taken.kwarg):
                if argument is not None:
                    argument.annotation = None
        elif isinstance(node, ast.AnnAssign):
            node.annotation = ast.Constant(None)
        elif isinstance(node, ast.If) and ast.unparse(node.test) == "TYPE_CHECKING":
            node.body = [ast.Pass()]
        elif isinstance(node, ast.Raise) and isinstance(node.exc, ast.Call):
            node.exc.args = [a for a in node.exc.args if not isinstance(a, ast.JoinedStr)]  # words are not behaviour
        elif isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant):
            node.value = ast.Constant(None)
    return ast.dump(tree)


class _Bits(ast.NodeTransformer):
    """NumPy's + and * of truth values are | and &, and these may be taken in any order."""

    def __init__(self) -> None:
        self._names: set[str] = set()

    def visit_Module(self, node: ast.Module) -> ast.AST:
        self._names = _masks(node.body, set())
        return self.generic_visit(node)

    def visit_FunctionDef(self, node: ast.FunctionDef) -> ast.AST:
        outside, arguments = self._names, [*node.args.posonlyargs, *node.args.args, *node.args.kwonlyargs]
        told = {one.arg for one in arguments if one.annotation and ast.unparse(one.annotation).endswith("[np.bool_]")}
        self._names = _masks(node.body, outside - {one.arg for one in arguments} | told)
        made = self.generic_visit(node)
        self._names = outside
        return made

    def visit_BinOp(self, node: ast.BinOp) -> ast.AST:
        self.generic_visit(node)
        if not isinstance(node.op, ast.Add | ast.Mult | ast.BitAnd | ast.BitOr) or not _mask(node, self._names):
            return node
        op = _OF_BITS.get(type(node.op), node.op)
        every = [part for side in (node.left, node.right) for part in self._parts(side, op)]
        made = every[0]
        for part in every[1:]:
            made = ast.BinOp(made, op, part)
        return made

    def _parts(self, node: ast.expr, op: ast.operator) -> list[ast.expr]:
        if isinstance(node, ast.BinOp) and type(node.op) is type(op) and _mask(node, self._names):
            return [*self._parts(node.left, op), *self._parts(node.right, op)]
        return [node]


def _masks(body: list[ast.stmt], names: set[str]) -> set[str]:
    """Names that stand for arrays of truth values: these, and those that are given nothing else."""
    given: list[tuple[str, ast.expr | None]] = []
    for node in (found for statement in body for found in ast.walk(statement)):
        if isinstance(node, ast.Assign):
            for target in node.targets:
                pairs: list[tuple[ast.expr, ast.expr | None]] = [(target, node.value)]
                if isinstance(target, ast.Tuple):
                    values = node.value.elts if isinstance(node.value, ast.Tuple) else [None] * len(target.elts)
                    pairs = list(zip(target.elts, values, strict=False))
                given += [(one.id, value) for one, value in pairs if isinstance(one, ast.Name)]
        elif isinstance(node, ast.For | ast.comprehension):
            given += [(found.id, None) for found in ast.walk(node.target) if isinstance(found, ast.Name)]
    names = names | {name for name, _ in given}
    while odd := {name for name, value in given if name in names and (value is None or not _mask(value, names))}:
        names -= odd
    return names


def _mask(node: ast.expr, names: set[str]) -> bool:
    """Whether it is an array of truth values."""
    match node:
        case ast.BinOp(left, op, right):
            bits = isinstance(op, ast.BitAnd | ast.BitOr | ast.BitXor | ast.Add | ast.Mult)
            return bits and _mask(left, names) and _mask(right, names)
        case ast.UnaryOp(ast.Invert(), operand):
            return _mask(operand, names)
        case ast.Call(ast.Attribute(owner, "take")) | ast.Subscript(owner):
            return _mask(owner, names)
        case ast.Call(ast.Attribute(attr="is_" | "isin" | "all" | "any")) | ast.Call(ast.Name("flags")):
            return True
        case ast.Call(keywords=[*_, ast.keyword("dtype", ast.Attribute(attr="bool_"))]):
            return True
    return isinstance(node, ast.Compare) or (isinstance(node, ast.Name) and node.id in names)


def _difference(before: str, after: str) -> tuple[int, tuple[str, str]]:
    one, two = before.splitlines(), after.splitlines()
    for number, (a, b) in enumerate(zip(one, two, strict=False), 1):
        if a != b:
            return number, (a.strip(), b.strip())
    return len(one), ("", "")
