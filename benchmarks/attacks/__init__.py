"""Attacks on what attnc claims: random heads, networks, converted blocks, learners and altered models."""
