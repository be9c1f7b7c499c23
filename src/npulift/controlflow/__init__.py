"""Source-level rewrites of control flow and of sizes that depend on data: found in the user's forward(), rewritten, verified, shown as a diff."""

from npulift.controlflow.rewriter import Rewritten, proposals, rewrite_file, rewrites_of, rewritten_spec

__all__ = ["Rewritten", "proposals", "rewrite_file", "rewrites_of", "rewritten_spec"]
