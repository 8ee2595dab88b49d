"""Sealed texts of a team: made, mounted elsewhere, carried in files."""
