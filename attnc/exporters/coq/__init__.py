"""Coq files: the approximation term of a certificate as a theorem that a proof assistant checks."""
