"""Checks users' SQL: accepts one harmless SELECT, or refuses with the reason. Uses DuckDB's parser, not a word list.

Three of the four protections are here; the fourth, limits of time and memory, is the process that all of this runs in
(`sql_worker`):

1. exactly one statement, and it is a SELECT: the only kind whose syntax tree DuckDB gives;
2. its syntax tree names only published tables (unqualified) or names that its own WITH binds, only functions of
   short lists, and only node types that this module knows; what is unknown is refused, so that new features
   of the engine are not allowed by default;
3. where the caller sees some clusters only, the query is wrapped so that the tables' names stand for the caller's
   rows, and the wrapped text is parsed again: it must contain exactly the tree that was checked.
"""

import re
from collections.abc import Mapping
from typing import Any, Final

import orjson

from ingero_echo.errors import EchoApiError
from ingero_echo.functions import FUNCTIONS, TABLE_FUNCTIONS, TYPES
from ingero_echo.tables import TABLES
from ingero_echo.window import NO_SOURCES, Window, scoped

MAX_TEXT: Final = 16 << 10
"""Longest query, characters."""

MAX_NODES: Final = 5000
"""Most nodes of a syntax tree."""

MAX_DEPTH: Final = 300
"""Most levels of a syntax tree as JSON; an operator takes two."""

MAX_READS: Final = 200
"""Most table references after every name of a WITH is expanded: planning takes memory for each."""

_Bound = Mapping[str, int]
"""Names that WITH has bound, with how often each reads tables."""

_HINT: Final = f"one SELECT over {', '.join(TABLES)}; fleet.cluster.describe names their columns"

_QUERY_NODES: Final = frozenset({"SELECT_NODE", "SET_OPERATION_NODE", "CTE_NODE"})
"""Recursion is not among them: DuckDB 2.0 can hang when a recursive query is cancelled."""
_TABLE_NODES: Final = frozenset(
    {"BASE_TABLE", "SUBQUERY", "JOIN", "TABLE_FUNCTION", "EMPTY", "EXPRESSION_LIST", "EMPTY_FROM"}
)
_EXPRESSIONS: Final = frozenset(
    {
        "COLUMN_REF", "CONSTANT", "FUNCTION", "COMPARISON", "CONJUNCTION", "CASE", "CAST", "OPERATOR", "SUBQUERY",
        "WINDOW", "STAR", "BETWEEN", "LAMBDA", "COLLATE", "LAMBDA_REF", "TYPE",
    }
)  # fmt: skip
_MODIFIERS: Final = frozenset({"ORDER_MODIFIER", "LIMIT_MODIFIER", "DISTINCT_MODIFIER", "LIMIT_PERCENT_MODIFIER"})
_SESSION_NAMES: Final = frozenset(
    {"current_catalog", "current_database", "current_schema", "current_role", "current_user", "session_user", "user"}
)
"""Names with the syntax of columns that are functions of the session."""


def check(text: str, connection: Any) -> Any:
    """The syntax tree of a harmless query; `connection` only parses.

    Raises `EchoApiError` with the reason.
    """
    if len(text) > MAX_TEXT:
        raise _refuse(f"the query is longer than {MAX_TEXT} characters")
    if "\0" in text:
        raise _refuse("the query holds a NUL character")
    tree = _tree(text, connection)
    _Walk().statement(tree)
    return tree


def sandbox_query(text: str, window: Window, connection: Any, tables: Mapping[str, str] = NO_SOURCES) -> str:
    """The query restricted to the window; the text itself where the window includes everything.

    `tables` are expressions for FROM that stand for tables of the database.

    Raises `EchoApiError` with the reason.
    """
    tree = check(text, connection)
    if window == Window() and not tables:
        return text
    wrapped = scoped(text.strip().rstrip(";"), window, tables)
    if _inner(_tree(wrapped, connection)) != _without_positions(tree):
        raise _refuse("its text does not keep its meaning inside another query: leave comments and semicolons out")
    return wrapped


def _tree(text: str, connection: Any) -> Any:
    """The syntax tree of a text that is one SELECT; DuckDB serialises no other statement."""
    row = connection.execute("SELECT json_serialize_sql(?::VARCHAR)", [text]).fetchone()
    if _depth(row[0]) > MAX_DEPTH:
        raise _refuse(f"it is nested deeper than {MAX_DEPTH} levels")
    tree = orjson.loads(row[0])
    if tree.get("error"):
        reason = str(tree.get("error_message"))[:300]
        # What DuckDB says of every other statement is about its JSON.
        raise _refuse("only SELECT is allowed" if "serialized" in reason else f"it cannot be parsed: {reason}")
    statements = tree.get("statements") or []
    if len(statements) != 1:
        raise _refuse(f"exactly one statement is allowed, not {len(statements)}")
    return statements[0]


def _depth(text: str) -> int:
    """Levels of a JSON text; found without recursion."""
    depth = deepest = 0
    for mark in _MARKS.findall(text):
        if mark in "[{":
            depth += 1
            deepest = max(deepest, depth)
        elif mark in "]}":
            depth -= 1
    return deepest


def _inner(tree: Any) -> Any:
    """The query inside our wrapper, without positions."""
    try:
        node = tree["node"]
        while node["type"] == "CTE_NODE":
            node = node["child"]
        return _without_positions(node["from_table"]["subquery"])
    except (KeyError, TypeError):
        return None


def _without_positions(tree: Any) -> Any:
    if isinstance(tree, dict):
        return {key: _without_positions(value) for key, value in tree.items() if not key.startswith("query_location")}
    if isinstance(tree, list):
        return [_without_positions(value) for value in tree]
    return tree


def _refuse(reason: str) -> EchoApiError:
    return EchoApiError("sql_refused", f"the query is refused: {reason}", _HINT, status=422)


_MARKS: Final = re.compile(r'[\[\]{}]|"(?:[^"\\]|\\.)*"')
"""Brackets and strings of JSON, so that brackets within strings do not count."""


class _Walk:
    """Visits every node once, top down, with the names that WITH has bound so far."""

    def __init__(self) -> None:
        self._seen = 0
        self._reads = 0

    def statement(self, tree: Any) -> None:
        if tree.get("named_param_map"):
            raise _refuse("parameters are not allowed")
        self._query(tree["node"], {})

    def _count(self) -> None:
        self._seen += 1
        if self._seen > MAX_NODES:
            raise _refuse(f"it is larger than {MAX_NODES} parts")

    def _read(self, times: int) -> None:
        self._reads += times
        if self._reads > MAX_READS:
            raise _refuse(f"with every WITH put in its place it reads tables more than {MAX_READS} times")

    def _reads_of(self, node: Any, bound: _Bound) -> int:
        """How often a named query of WITH reads tables; each use of the name adds that number."""
        before, self._reads = self._reads, 0
        self._query(node, bound)
        mine, self._reads = max(1, self._reads), before
        return mine

    def _query(self, node: Any, bound: _Bound) -> None:
        self._count()
        kind = node.get("type")
        if kind == "RECURSIVE_CTE_NODE":
            raise _refuse("WITH RECURSIVE is not allowed: it cannot be cancelled safely")
        if kind not in _QUERY_NODES:
            raise _refuse(f"{kind} is not allowed")
        for entry in (node.get("cte_map") or {}).get("map") or ():
            name = str(entry["key"]).lower()
            value = entry["value"]
            inner = value.get("query_node") or (value.get("query") or {}).get("node")
            if inner is None:
                raise _refuse("a part of WITH cannot be read")
            reads = self._reads_of(inner, bound)
            self._expressions({key: item for key, item in value.items() if key not in ("query", "query_node")}, bound)
            bound = {**bound, name: reads}
        for modifier in node.get("modifiers") or ():
            if modifier.get("type") not in _MODIFIERS:
                raise _refuse(f"{modifier.get('type')} is not allowed")
        skip = {"type", "cte_map"}
        if kind == "SET_OPERATION_NODE":
            for child in (node.get("left"), node.get("right"), *(node.get("children") or ())):
                if child is not None:
                    self._query(child, bound)
            skip |= {"left", "right", "children"}
        elif kind == "CTE_NODE":
            name = str(node.get("cte_name") or node.get("ctename") or "").lower()
            reads = self._reads_of(node["query"], bound)
            self._query(node["child"], {**bound, name: reads})
            skip |= {"query", "child"}
        elif node.get("from_table") is not None:
            self._table(node["from_table"], bound)
        self._expressions({key: value for key, value in node.items() if key not in skip | {"from_table"}}, bound)

    def _table(self, node: Any, bound: _Bound) -> None:
        self._count()
        kind = node.get("type")
        if kind not in _TABLE_NODES:
            raise _refuse(f"{kind} is not allowed in FROM")
        skip = {"type"}
        if kind == "BASE_TABLE":
            self._base(node, bound)
        elif kind == "SUBQUERY":
            self._query(node["subquery"]["node"], bound)
            skip |= {"subquery"}
        elif kind == "JOIN":
            self._table(node["left"], bound)
            self._table(node["right"], bound)
            skip |= {"left", "right"}
        elif kind == "TABLE_FUNCTION":
            call = node.get("function") or {}
            name = _function_name(call)
            if name not in TABLE_FUNCTIONS:
                raise _refuse(f"the table function {name} is not allowed")
            self._expressions({key: item for key, item in call.items() if key not in ("class", "type")}, bound)
            skip |= {"function"}
        self._expressions({key: value for key, value in node.items() if key not in skip}, bound)

    def _base(self, node: Any, bound: _Bound) -> None:
        name = str(node.get("table_name") or "")
        path = (node.get("qualified_name") or {}).get("path") or [name]
        if node.get("schema_name") or node.get("catalog_name") or len(path) != 1 or path[0] != name:
            raise _refuse(f"the table {name} must be named without schema or catalog")
        if node.get("at_clause"):
            raise _refuse("AT is not allowed")
        if name.lower() not in bound and name.lower() not in TABLES:
            raise _refuse(f"there is no table {name}")
        self._read(bound.get(name.lower(), 1))

    def _expressions(self, value: Any, bound: _Bound) -> None:
        """Everything below that is not a table: expressions, and queries inside expressions."""
        if isinstance(value, list):
            for item in value:
                self._expressions(item, bound)
            return
        if not isinstance(value, dict):
            return
        self._count()
        if "class" in value:
            self._expression(value, bound)
            return
        kind = value.get("type")
        if isinstance(kind, str) and kind in _QUERY_NODES:
            self._query(value, bound)
            return
        if isinstance(kind, str) and kind in _TABLE_NODES and "sample" in value:
            self._table(value, bound)
            return
        for item in value.values():
            self._expressions(item, bound)

    def _expression(self, node: Any, bound: _Bound) -> None:
        kind = node["class"]
        if kind not in _EXPRESSIONS:
            raise _refuse(f"{kind} expressions are not allowed")
        if kind in ("FUNCTION", "WINDOW"):
            name = _function_name(node)
            if name not in FUNCTIONS:
                raise _refuse(f"the function {name} is not allowed")
        elif kind == "TYPE":
            path = (node.get("qualified_name") or {}).get("path") or []
            if len(path) != 1 or str(path[0]).lower() not in TYPES:
                raise _refuse(f"the type {'.'.join(map(str, path))} is not allowed")
        elif kind == "COLUMN_REF":
            names = [str(name).lower() for name in node.get("column_names") or ()]
            if len(names) == 1 and names[0] in _SESSION_NAMES:
                raise _refuse(f"{names[0]} is not allowed")
        elif kind == "SUBQUERY":
            self._query(node["subquery"]["node"], bound)
        for key, item in node.items():
            if key not in ("class", "type", "qualified_name") and not (kind == "SUBQUERY" and key == "subquery"):
                self._expressions(item, bound)


def _function_name(node: Any) -> str:
    if node.get("schema") or node.get("catalog"):
        raise _refuse("functions must be named without schema")
    name = str(node.get("function_name") or "").lower()
    path = (node.get("qualified_name") or {}).get("path")
    if path is not None and [str(part).lower() for part in path] != [name]:
        raise _refuse("functions must be named without schema")
    return name
