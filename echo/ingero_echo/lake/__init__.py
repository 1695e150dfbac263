"""Seals events into tables that every engine reads: Apache Iceberg on object storage."""
