"""Taints stragglers within limits. Only `controller` and `condition_writer` reach the API server; the rest is pure.

`nodes` extracts the facts of a Node. `state` holds what is remembered between decisions, and `tracking` updates it.
`policy` decides, with `additions` and `removals`. `patches` turns a step into a JSON patch. `node_conditions` decides
on the condition of a node.
"""
