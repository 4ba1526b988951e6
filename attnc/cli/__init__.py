"""The command line: `attnc head`, `compile`, `convert`, `learn`, `reproduce`, `verify`, `show`, `functions`."""

from attnc.cli.app import app, main

__all__ = ["app", "main"]
