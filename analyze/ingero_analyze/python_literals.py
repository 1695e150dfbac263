"""Reads what Python prints of dictionaries and lists, also of scalars of NumPy, PyTorch and pandas, as JSON. Pure."""

import ast
import json
import re
import warnings
from typing import Any, Final

_STRING: Final = r"[bru]{0,2}(?:'(?:[^'\\]|\\.)*'|\"(?:[^\"\\]|\\.)*\")"
_TOKEN: Final = re.compile(
    rf"(?P<key>(?<=[{{,\s])-?\d[\d.eE+-]*(?=\s*:))|(?P<text>{_STRING})"
    rf"|[A-Za-z_][\w.]*\(\s*(?P<scalar>{_STRING}|[-+\w.]+)\s*(?:,[^()]*)?\)"
    r"|(?P<word>[-+]?\b[A-Za-z_][\w.]*)|(?P<bracket>[()])|(?P<comma>,(?=\s*[\])}]))"
)
"""A number that is a name, text, a call with one scalar such as `np.float64(0.5)`, a word, and what JSON lacks."""

MOST_ODD: Final = 1 << 16
"""Characters of a literal with names that are no text, or with sets."""

_WORDS: Final = {"True": "true", "False": "false", "true": "true", "false": "false"}


def read_printed(text: str) -> Any:
    """The value of a literal as JSON would have it: tuples are lists, and missing numbers null.

    Names that are tuples are left out, and sets are text, in literals of at most `MOST_ODD` characters. Raises
    `ValueError` for anything else, and `RecursionError`.
    """
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            return json.loads(_TOKEN.sub(_as_json, text))
        except ValueError:
            if len(text) > MOST_ODD:
                raise
        try:
            return json.loads(json.dumps(ast.literal_eval(text.strip()), default=str, skipkeys=True))
        except (TypeError, SyntaxError, MemoryError) as error:
            raise ValueError(str(error)) from None


def _as_json(token: re.Match[str]) -> str:
    kind, found = token.lastgroup, token[0]
    if kind == "key":
        return f'"{found}"'
    if kind == "text":
        return _text(found)
    if kind == "scalar":
        return _scalar(token["scalar"])
    if kind == "word":
        return _word(found)
    return {"(": "[", ")": "]"}.get(found, "")


def _scalar(inner: str) -> str:
    if inner[-1:] in "'\"":
        return _text(inner)
    try:
        float(inner)
    except ValueError:
        return _word(inner)
    return _word(inner) if inner[-1:].isalpha() else inner.lstrip("+").removesuffix(".")


def _text(quoted: str) -> str:
    try:
        found = ast.literal_eval(quoted)
    except SyntaxError as error:
        raise ValueError(str(error)) from None
    return json.dumps(found.decode(errors="replace") if isinstance(found, bytes) else found)


def _word(word: str) -> str:
    """JSON for a word: null for `nan` and what stands for nothing, the text itself for any other."""
    if word.lower().lstrip("-+") in ("none", "null", "nan", "nat", "na", "<na>", "inf"):
        return "null"
    last = word.rpartition(".")[2].rstrip("_")
    return _WORDS.get(last) or json.dumps(word)
