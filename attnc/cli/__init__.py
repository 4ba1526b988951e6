"""The command line: `attnc head`, `compile`, `learn`, `verify`, `show`, `functions`."""

from attnc.cli.app import app, main

__all__ = ["app", "main"]
