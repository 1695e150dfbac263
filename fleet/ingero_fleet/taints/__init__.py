"""Marks on nodes as the operator tells of them: read from its log records, kept until they end. For people only."""
