"""Computes what stragglers cost: rates, providers, counterfactual shares, a ledger. All but `command` is pure."""
