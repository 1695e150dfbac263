"""Doubles and builders shared by the tests."""
