"""The drill: everything is broken once, and what must be lost is measured."""
