"""Taints of nodes as the operator reports them: read from its log records, kept until they end. For display only."""
