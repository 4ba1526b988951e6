"""The command line: `attnc head`, `attnc verify`, `attnc functions`."""

from attnc.cli.app import app, main

__all__ = ["app", "main"]
