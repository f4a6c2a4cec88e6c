"""Checked, atomic files."""
