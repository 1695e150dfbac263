"""Pydantic's JSON schema as a structural schema: no references, no unions, a type at every node, no defaults."""

from typing import Any, Final

from pydantic import BaseModel

_KEPT: Final = (
    "type", "format", "enum", "pattern", "minLength", "maxLength", "minimum", "maximum", "minItems", "maxItems",
    "minProperties", "maxProperties", "required", "description",
)  # fmt: skip


def structural(model: type[BaseModel]) -> dict[str, Any]:
    """The structural schema of a type."""
    tree = model.model_json_schema(by_alias=True, mode="validation")
    return _flatten(tree, tree.get("$defs", {}))


def _flatten(node: dict[str, Any], definitions: dict[str, Any]) -> dict[str, Any]:
    description = node.get("description")
    if "$ref" in node:
        target = definitions[node["$ref"].rsplit("/", 1)[-1]]
        return _flatten({**target, **({"description": description} if description else {})}, definitions)
    if "anyOf" in node:
        options = [option for option in node["anyOf"] if option.get("type") != "null"]
        if len(options) != 1:
            raise ValueError(f"a union cannot be told structurally: {node}")
        return _flatten({**options[0], **({"description": description} if description else {})}, definitions)
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
        out["properties"] = {name: _flatten(child, definitions) for name, child in node["properties"].items()}
    if node.get("type") == "object" and isinstance(node.get("additionalProperties"), dict):
        out["additionalProperties"] = _flatten(node["additionalProperties"], definitions)
    elif node.get("type") == "object" and "patternProperties" in node:
        (values,) = node["patternProperties"].values()
        out["additionalProperties"] = _flatten(values, definitions)
    if "items" in node:
        out["items"] = _flatten(node["items"], definitions)
    if isinstance(out.get("description"), str):
        out["description"] = " ".join(out["description"].split())
    return out
