"""Thin adapters that give the rewards the call signature of a training library."""
