"""Mesh, sharding tables and processes."""
