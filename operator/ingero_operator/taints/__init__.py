"""Taints stragglers within limits. Only `controller` reads and writes nodes; all other modules are pure.

`nodes` extracts the facts of a Node. `state` holds what is remembered between decisions, and `tracking` updates it.
`policy` decides, with `additions` and `removals`. `patches` turns a step into a JSON patch.
"""
