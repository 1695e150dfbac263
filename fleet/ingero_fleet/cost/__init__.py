"""What stragglers cost: rates, who runs on what, counterfactual shares, a ledger. All but `command` is pure."""
