"""Converts Pydantic's JSON schema to a structural schema: no references, unions or defaults; a type at every node."""

from typing import Any, Final

from pydantic import BaseModel

_KEPT: Final = (
    "type", "format", "enum", "pattern", "minLength", "maxLength", "minimum", "maximum", "minItems", "maxItems",
    "minProperties", "maxProperties", "required", "description",
)  # fmt: skip


def structural(model: type[BaseModel], *, defaults: bool = False) -> dict[str, Any]:
    """The structural schema of a type. With `defaults` the descriptions name the defaults: the API server would write
    defaults of the schema into objects that users keep in Git."""
    tree = model.model_json_schema(by_alias=True, mode="validation")
    return _flatten(tree, tree.get("$defs", {}), defaults)


def _flatten(node: dict[str, Any], definitions: dict[str, Any], defaults: bool) -> dict[str, Any]:
    description = node.get("description")
    if "$ref" in node:
        target = definitions[node["$ref"].rsplit("/", 1)[-1]]
        return _flatten({**target, **({"description": description} if description else {})}, definitions, defaults)
    if "anyOf" in node:
        options = [option for option in node["anyOf"] if option.get("type") != "null"]
        if len(options) != 1:
            raise ValueError(f"a structural schema has no union: {node}")
        whole = {**options[0], **({"description": description} if description else {})}
        return _flatten(whole, definitions, defaults)
    out: dict[str, Any] = {key: node[key] for key in _KEPT if key in node}
    out |= {key: value for key, value in node.items() if key.startswith("x-kubernetes-")}
    for numeric, boolean, bound in (
        ("exclusiveMinimum", "exclusiveMinimum", "minimum"),
        ("exclusiveMaximum", "exclusiveMaximum", "maximum"),
    ):
        if numeric in node:
            out[bound], out[boolean] = node[numeric], True
    if "const" in node:
        out["enum"] = [node["const"]]
    if "properties" in node:
        out["properties"] = {
            name: _property(child, definitions, defaults) for name, child in node["properties"].items()
        }
    if node.get("type") == "object" and isinstance(node.get("additionalProperties"), dict):
        out["additionalProperties"] = _flatten(node["additionalProperties"], definitions, defaults)
    elif node.get("type") == "object" and "patternProperties" in node:
        (values,) = node["patternProperties"].values()
        out["additionalProperties"] = _flatten(values, definitions, defaults)
    if "items" in node:
        out["items"] = _flatten(node["items"], definitions, defaults)
    if isinstance(out.get("description"), str):
        out["description"] = " ".join(out["description"].split())
    return out


def _property(node: dict[str, Any], definitions: dict[str, Any], defaults: bool) -> dict[str, Any]:
    out = _flatten(node, definitions, defaults)
    default = _default(node, definitions) if defaults else ""
    if default:
        out["description"] = f"{out.get('description', '')} Default: {default}.".strip()
    return out


def _default(node: dict[str, Any], definitions: dict[str, Any]) -> str:
    """A default as text; empty where the default is empty, or where the fields of an object describe their own."""
    value = node.get("default")
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, dict):
        parts = definitions[node["$ref"].rsplit("/", 1)[-1]].get("properties", {}) if "$ref" in node else {}
        return ", ".join(
            f"{key}={item}"
            for key, item in value.items()
            if item not in (None, {}, []) and item != parts.get(key, {}).get("default")
        )
    return "" if value in (None, "", [], ()) else str(value)
