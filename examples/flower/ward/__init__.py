"""Wards that train a classifier together."""
